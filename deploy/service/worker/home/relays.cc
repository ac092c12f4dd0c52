#include "deploy/service/worker/home/relays.h"

#include <utility>

namespace tributary {

std::uint64_t Relays::open(PeerId peer, std::uint64_t key, wire::ControlReply reply) {
  {
    const std::lock_guard lock(mutex_);
    Share& share = shares_[key];
    const std::size_t items = share.items + reply.items.size();
    const bool room =
        share.controls == 0 || (share.controls < kMostOfKey && items <= kMostItemsOfKey);
    if (room && waiting_.size() < kMost) {
      share = {.controls = share.controls + 1, .items = items};
      waiting_.emplace(++last_ticket_, Waiting{peer, key, std::move(reply)});
      return last_ticket_;
    }
    if (share.controls == 0) shares_.erase(key);
    ++refused_;
  }
  wire::ControlRelayReply full{
      .ticket = 0, .items = {}, .message = "too many controls wait at this worker; try again"};
  full.items.resize(reply.items.size(), {.code = ErrorCode::kPoolFull});
  finish({peer, key, std::move(reply)}, full);
  return 0;
}

void Relays::answer(const wire::ControlRelayReply& verdicts) {
  Waiting asked;
  {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(verdicts.ticket);
    if (found == waiting_.end()) return;
    asked = std::move(found->second);
    waiting_.erase(found);
    Share& share = shares_.at(asked.key);
    share.items -= asked.reply.items.size();
    if (--share.controls == 0) shares_.erase(asked.key);
  }
  finish(std::move(asked), verdicts);
}

std::uint64_t Relays::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

void Relays::finish(Waiting asked, const wire::ControlRelayReply& verdicts) {
  const std::string refusal = std::exchange(asked.reply.message, {});
  auto verdict = verdicts.items.begin();
  for (wire::ControlReply::Item& item : asked.reply.items) {
    const bool refused = item.code != ErrorCode::kOk;
    if (!refused) {
      item = verdict != verdicts.items.end() ? *verdict++
                                             : wire::ControlReply::Item{ErrorCode::kInternal};
    }
    if (item.code != ErrorCode::kOk && asked.reply.message.empty()) {
      asked.reply.message = refused ? refusal : verdicts.message;
    }
  }
  peers_.send(asked.peer, asked.reply);
}

}  // namespace tributary
