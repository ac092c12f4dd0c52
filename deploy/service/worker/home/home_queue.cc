#include "deploy/service/worker/home/home_queue.h"

#include <algorithm>

#include "comm/wire/crc32c.h"
#include "deploy/service/worker/home/byte_shares.h"

namespace tributary {

std::span<const std::byte> HomeRequest::input_of(std::size_t item) const {
  return input.span().subspan(first_token[item] * input_bytes,
                              (first_token[item + 1] - first_token[item]) * input_bytes);
}

std::span<std::byte> HomeRequest::output_of(std::size_t item) const {
  return output.span().subspan(first_token[item] * output_bytes,
                               (first_token[item + 1] - first_token[item]) * output_bytes);
}

bool HomeRequest::end(std::size_t item, ErrorCode code, const std::string& text,
                      std::int32_t home) {
  if (ended[item]) return false;
  ended[item] = true;
  reply.items[item] = code;
  if (code != ErrorCode::kOk && reply.message.empty()) reply.message = text;
  if (home >= 0) reply.moved.push_back({static_cast<std::uint32_t>(item), home});
  --running;
  return true;
}

/// Finished requests are kept with their buffers for the next ones: a step asks for the same sizes
/// again and again. A kept request counts as held only while it is used.
struct HomeQueue::Memory {
  static constexpr std::size_t kSpare = 64;
  /// Larger requests are rare, and keeping them would waste much memory.
  static constexpr std::size_t kMaxSpareBytes = std::size_t{4} << 20;
  /// Of all spare requests: a client that asked for much leaves no more than this behind.
  static constexpr std::size_t kMaxAllSpareBytes = std::size_t{32} << 20;

  explicit Memory(std::size_t max_bytes) : held(max_bytes) {}

  std::mutex mutex;
  ByteShares held;
  std::vector<std::unique_ptr<HomeRequest>> spare;
  std::size_t spare_bytes = 0;

  void keep(std::unique_ptr<HomeRequest> request) {
    const std::size_t kept = request->input.capacity() + request->output.capacity();
    if (spare.size() >= kSpare || kept > kMaxSpareBytes || spare_bytes + kept > kMaxAllSpareBytes) {
      return;
    }
    spare_bytes += kept;
    spare.push_back(std::move(request));
  }

  [[nodiscard]] std::unique_ptr<HomeRequest> get() {
    if (spare.empty()) return std::make_unique<HomeRequest>();
    std::unique_ptr<HomeRequest> request = std::move(spare.back());
    spare.pop_back();
    spare_bytes -= request->input.capacity() + request->output.capacity();
    return request;
  }

  void give_back(std::unique_ptr<HomeRequest> request) {
    const std::lock_guard lock(mutex);
    held.give_back(request->shares);
    keep(std::move(request));
  }
};

HomeQueue::HomeQueue(std::size_t max_bytes, Reply reply)
    : reply_(std::move(reply)), memory_(std::make_shared<Memory>(max_bytes)) {}

HomeQueue::~HomeQueue() = default;

std::shared_ptr<HomeRequest> HomeQueue::open(PeerId peer, wire::LayerRequest asked, Time arrival,
                                             std::size_t input_bytes, std::size_t output_bytes,
                                             const std::function<std::size_t(std::size_t)>& payer) {
  std::unique_ptr<HomeRequest> made;
  std::size_t tokens = 0;
  {
    const std::lock_guard lock(memory_->mutex);
    made = memory_->get();
    made->shares.clear();
    for (std::size_t i = 0; i < asked.items.size(); ++i) {
      const auto of_item = static_cast<std::size_t>(asked.items[i].tokens);
      tokens += of_item;
      made->shares.emplace_back(asked.items[payer(i)].id, of_item * (input_bytes + output_bytes));
    }
    if (!memory_->held.take(made->shares)) {
      memory_->keep(std::move(made));
      return nullptr;
    }
  }
  std::shared_ptr<HomeRequest> result(made.release(), [memory = memory_](HomeRequest* ended) {
    memory->give_back(std::unique_ptr<HomeRequest>(ended));
  });
  result->peer = peer;
  result->asked = std::move(asked);
  result->arrival = arrival;
  result->input_bytes = input_bytes;
  result->output_bytes = output_bytes;
  result->first_token.assign(1, 0);
  for (const StepItem& item : result->asked.items) {
    result->first_token.push_back(result->first_token.back() +
                                  static_cast<std::size_t>(item.tokens));
  }
  (void)result->input.resize(tokens * input_bytes);
  (void)result->output.resize(tokens * output_bytes);
  result->running = result->asked.items.size();
  result->reply = {.request = result->asked.request,
                   .items = std::vector<ErrorCode>(result->running),
                   .message = {}};
  result->ended.assign(result->running, false);
  return result;
}

std::uint64_t HomeQueue::submit(std::shared_ptr<HomeRequest> request) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t ticket = ++last_ticket_;
  request->ticket = ticket;
  for (std::size_t i = 0; i < request->ended.size(); ++i) {
    if (request->ended[i]) continue;
    const StepItem& item = request->asked.items[i];
    claims_[{item.id, item.layer}].push_back({request, i});
  }
  requests_.emplace(ticket, std::move(request));
  return ticket;
}

bool HomeQueue::end(const Claim& claim, ErrorCode code, const std::string& message,
                    std::int32_t home) {
  if (!claim.request->end(claim.item, code, message, home)) return false;
  const auto found = claims_.find({claim.request->asked.items[claim.item].id, claim.layer()});
  if (found != claims_.end()) {
    std::erase_if(found->second, [&](const Claim& other) {
      return other.request == claim.request && other.item == claim.item;
    });
    if (found->second.empty()) claims_.erase(found);
  }
  return claim.request->running == 0;
}

void HomeQueue::refuse(const wire::ItemsRefused& refused) {
  std::shared_ptr<HomeRequest> done;
  {
    const std::lock_guard lock(mutex_);
    const auto found = requests_.find(refused.ticket);
    if (found == requests_.end()) return;
    for (const std::uint32_t item : refused.items) {
      if (item >= found->second->ended.size()) continue;
      if (end({found->second, item}, refused.outcome.code, refused.outcome.message, refused.home)) {
        done = std::move(found->second);
        requests_.erase(found);
        break;
      }
    }
  }
  if (done) reply_(done);
}

/// The older one, if a client has sent the item twice. Call under the lock.
const Claim* HomeQueue::find(const StepItem& item) const {
  const auto found = claims_.find({item.id, item.layer});
  if (found == claims_.end()) return nullptr;
  for (const Claim& claim : found->second) {
    const StepItem& asked = claim.request->asked.items[claim.item];
    if (asked.base_length == item.base_length && asked.tokens == item.tokens) return &claim;
  }
  return nullptr;
}

Claim HomeQueue::claim(const HomedItem& homed, std::int32_t layer) {
  const std::lock_guard lock(mutex_);
  const Claim* const found = find({.id = homed.id,
                                   .tokens = homed.tokens,
                                   .layer = layer,
                                   .epoch = 0,
                                   .base_length = homed.position});
  if (found == nullptr) return {};
  return {found->request, found->item, &homed};
}

std::vector<wire::Items> HomeQueue::waiting(std::span<const StepItem> items, Time now) {
  using std::chrono::duration_cast, std::chrono::microseconds;
  std::map<std::uint64_t, wire::Items> by_ticket;
  const std::lock_guard lock(mutex_);
  for (const StepItem& item : items) {
    const Claim* const found = find(item);
    if (found == nullptr) continue;
    const HomeRequest& request = *found->request;
    const auto [known, first] = by_ticket.try_emplace(request.ticket);
    wire::Items& again = known->second;
    if (first) {
      const auto left =
          request.asked.deadline_us - duration_cast<microseconds>(now - request.arrival).count();
      again = {.ticket = request.ticket,
               .deadline_us = static_cast<std::uint32_t>(std::max<std::int64_t>(left, 0)),
               .part = {},
               .items = request.asked.items};
      for (StepItem& one : again.items) one.tokens = 0;
    }
    again.items[found->item].tokens = request.asked.items[found->item].tokens;
  }
  std::vector<wire::Items> all;
  all.reserve(by_ticket.size());
  for (auto& [ticket, again] : by_ticket) all.push_back(std::move(again));
  return all;
}

void HomeQueue::finish(const Claim& claim, const Status& status) {
  bool done = false;
  {
    const std::lock_guard lock(mutex_);
    done = end(claim, status.code(), status.message());
    if (done) requests_.erase(claim.request->ticket);
  }
  if (done) reply_(claim.request);
}

std::uint64_t HomeQueue::refused() const {
  const std::lock_guard lock(memory_->mutex);
  return memory_->held.refused();
}

std::size_t HomeQueue::bytes() const {
  const std::lock_guard lock(memory_->mutex);
  return memory_->held.bytes();
}

std::vector<std::span<const std::byte>> finish_reply(HomeRequest& request) {
  std::vector<std::span<const std::byte>> payload;
  for (std::size_t i = 0; i < request.reply.items.size(); ++i) {
    if (request.reply.items[i] != ErrorCode::kOk) continue;
    const std::span<const std::byte> output = request.output_of(i);
    request.reply.crc32c = wire::crc32c(output, request.reply.crc32c);
    append_piece(payload, output);
  }
  return payload;
}

}  // namespace tributary
