#include "deploy/worker/home_queue.h"

#include <algorithm>
#include <cstring>

namespace tributary {

std::span<std::byte> RoundBuffer::resize(std::size_t bytes) {
  if (bytes > capacity_) {
    data_.reset();
    data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    capacity_ = bytes;
  }
  bytes_ = bytes;
  return span();
}

std::span<const std::byte> HomeRound::input_of(std::size_t item) const {
  return input.span().subspan(first_token[item] * input_bytes,
                              (first_token[item + 1] - first_token[item]) * input_bytes);
}

std::span<std::byte> HomeRound::output_of(std::size_t item) const {
  return output.span().subspan(first_token[item] * output_bytes,
                               (first_token[item + 1] - first_token[item]) * output_bytes);
}

/// Rounds that have ended are kept for the next ones, with their buffers: a step asks for the same
/// sizes again and again. What waits here counts as held only while it is used.
struct HomeQueue::Memory {
  static constexpr std::size_t kSpare = 64;
  /// Larger rounds are rare, and would hold much memory for nothing.
  static constexpr std::size_t kMaxSpareBytes = std::size_t{4} << 20;

  std::mutex mutex;
  std::size_t bytes = 0;
  std::vector<std::unique_ptr<HomeRound>> spare;

  void give_back(std::unique_ptr<HomeRound> round, std::size_t held) {
    const std::lock_guard lock(mutex);
    bytes -= held;
    if (spare.size() < kSpare &&
        round->input.capacity() + round->output.capacity() <= kMaxSpareBytes) {
      spare.push_back(std::move(round));
    }
  }
};

HomeQueue::HomeQueue(std::size_t max_bytes, Reply reply)
    : max_bytes_(max_bytes), reply_(std::move(reply)), memory_(std::make_shared<Memory>()) {}

HomeQueue::~HomeQueue() = default;

std::shared_ptr<HomeRound> HomeQueue::open(PeerId peer, wire::Round round, std::size_t input_bytes,
                                           std::size_t output_bytes) {
  std::size_t tokens = 0;
  for (const wire::RoundItem& item : round.items) tokens += static_cast<std::size_t>(item.tokens);
  const std::size_t held = tokens * (input_bytes + output_bytes);
  std::unique_ptr<HomeRound> made;
  {
    const std::lock_guard lock(memory_->mutex);
    if (held > max_bytes_ || memory_->bytes > max_bytes_ - held) return nullptr;
    memory_->bytes += held;
    if (!memory_->spare.empty()) {
      made = std::move(memory_->spare.back());
      memory_->spare.pop_back();
    }
  }
  if (!made) made = std::make_unique<HomeRound>();
  std::shared_ptr<HomeRound> result(made.release(), [memory = memory_, held](HomeRound* ended) {
    memory->give_back(std::unique_ptr<HomeRound>(ended), held);
  });
  result->peer = peer;
  result->round = std::move(round);
  result->arrival = std::chrono::steady_clock::now();
  result->input_bytes = input_bytes;
  result->output_bytes = output_bytes;
  result->first_token.assign(1, 0);
  for (const wire::RoundItem& item : result->round.items) {
    result->first_token.push_back(result->first_token.back() +
                                  static_cast<std::size_t>(item.tokens));
  }
  (void)result->input.resize(tokens * input_bytes);
  (void)result->output.resize(tokens * output_bytes);
  result->items.assign(result->round.items.size(), {});
  result->running = result->items.size();
  result->message.clear();
  return result;
}

std::uint64_t HomeQueue::submit(std::shared_ptr<HomeRound> round) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t ticket = ++last_ticket_;
  for (std::size_t i = 0; i < round->items.size(); ++i) {
    const wire::RoundItem& item = round->round.items[i];
    places_[{item.sequence_id, item.layer}].push_back({ticket, i});
  }
  rounds_.emplace(ticket, std::move(round));
  return ticket;
}

bool HomeQueue::end(std::uint64_t ticket, HomeRound& round, std::size_t item, ErrorCode code,
                    const std::string& message) {
  HomeRound::Item& ended = round.items[item];
  if (ended.ended) return false;
  ended = {code, true};
  if (code != ErrorCode::kOk && round.message.empty()) round.message = message;
  const wire::RoundItem& asked = round.round.items[item];
  const auto found = places_.find({asked.sequence_id, asked.layer});
  if (found != places_.end()) {
    std::erase_if(found->second,
                  [&](const Place& place) { return place.ticket == ticket && place.item == item; });
    if (found->second.empty()) places_.erase(found);
  }
  return --round.running == 0;
}

void HomeQueue::refuse(const wire::ItemsRefused& refused) {
  std::shared_ptr<HomeRound> done;
  {
    const std::lock_guard lock(mutex_);
    const auto found = rounds_.find(refused.ticket);
    if (found == rounds_.end()) return;
    for (const std::uint32_t item : refused.items) {
      if (item >= found->second->items.size()) continue;
      if (end(refused.ticket, *found->second, item, refused.outcome.code,
              refused.outcome.message)) {
        done = std::move(found->second);
        rounds_.erase(found);
        break;
      }
    }
  }
  if (done) reply_(done);
}

HomeQueue::Claim HomeQueue::claim(std::uint64_t sequence_id, std::int32_t layer,
                                  std::int64_t base_length, std::int32_t tokens) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find({sequence_id, layer});
  if (found == places_.end()) return {};
  for (const Place& place : found->second) {
    const auto& round = rounds_.at(place.ticket);
    const wire::RoundItem& item = round->round.items[place.item];
    if (item.base_length == base_length && item.tokens == tokens) {
      return {round, place.item, place.ticket};
    }
  }
  return {};
}

void HomeQueue::finish(const Claim& claim, const Status& status) {
  bool done = false;
  {
    const std::lock_guard lock(mutex_);
    done = end(claim.ticket, *claim.round, claim.item, status.code(), status.message());
    if (done) rounds_.erase(claim.ticket);
  }
  if (done) reply_(claim.round);
}

std::size_t HomeQueue::bytes() const {
  const std::lock_guard lock(memory_->mutex);
  return memory_->bytes;
}

std::pair<wire::RoundReply, std::span<const std::byte>> finish_reply(HomeRound& round) {
  wire::RoundReply reply{
      .request = round.round.request, .crc32c = 0, .items = {}, .message = round.message};
  const std::span<std::byte> output = round.output.span();
  std::size_t filled = 0;
  for (std::size_t i = 0; i < round.items.size(); ++i) {
    reply.items.push_back(round.items[i].code);
    if (round.items[i].code != ErrorCode::kOk) continue;
    const auto part = round.output_of(i);
    if (output.data() + filled != part.data()) {
      std::memmove(output.data() + filled, part.data(), part.size());
    }
    filled += part.size();
  }
  const auto payload = output.first(filled);
  reply.crc32c = wire::crc32c(payload);
  return {std::move(reply), payload};
}

}  // namespace tributary
