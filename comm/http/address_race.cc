#include "comm/http/address_race.h"

namespace tributary {

std::optional<Time> AddressRace::wake() const {
  if (next_ == addresses_) return std::nullopt;
  if (running_.empty()) return Time::min();
  return running_.size() == 1 ? running_.front().since + kHeadStart
                              : running_.front().since + kPatience;
}

AddressRace::Move AddressRace::next(Time now) {
  Move move;
  const std::optional<Time> due = wake();
  if (!due || now < *due) return move;
  if (running_.size() == 2) {
    move.abandon = running_.front().address;
    running_.pop_front();
  }
  running_.push_back({next_, now});
  move.start = next_++;
  return move;
}

void AddressRace::failed(std::size_t address) {
  std::erase_if(running_, [&](const Attempt& attempt) { return attempt.address == address; });
}

}  // namespace tributary
