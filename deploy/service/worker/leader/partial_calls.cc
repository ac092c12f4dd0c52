#include "deploy/service/worker/leader/partial_calls.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace tributary {
namespace {

/// The items of further calls do not wait for each other.
constexpr std::size_t kMaxCalls = 1024;
/// How long the rest of a call whose items were released is expected.
constexpr std::chrono::seconds kForgotten{1};

void append(auto& to, std::vector<WaitingItem>& items) {
  to.insert(to.end(), std::move_iterator(items.begin()), std::move_iterator(items.end()));
}

}  // namespace

void PartialCalls::add(const wire::CallPart& part, std::vector<WaitingItem> items, Time until,
                       std::deque<WaitingItem>& ready) {
  auto call = std::ranges::find(calls_, part.call, &Call::number);
  if (call == calls_.end()) {
    if (part.messages <= 1 || items.empty() || calls_.size() == kMaxCalls) {
      return append(ready, items);
    }
    calls_.push_back({part.call, part.messages - 1U, until, std::move(items)});
    return;
  }
  if (call->items.empty()) {
    append(ready, items);
  } else {
    append(call->items, items);
  }
  if (--call->missing > 0) return;
  append(ready, call->items);
  calls_.erase(call);
}

void PartialCalls::release(Time now, std::deque<WaitingItem>& ready) {
  std::erase_if(calls_, [&](Call& call) {
    if (now < call.until) return false;
    append(ready, call.items);
    call.items.clear();
    return now >= call.until + kForgotten;
  });
}

std::optional<WaitingItem> PartialCalls::remove(SequenceId id) {
  for (Call& call : calls_) {
    const auto found = std::ranges::find(
        call.items, id, [](const WaitingItem& waiting) { return waiting.item.id; });
    if (found == call.items.end()) continue;
    std::optional<WaitingItem> removed = std::move(*found);
    call.items.erase(found);
    return removed;
  }
  return std::nullopt;
}

Time PartialCalls::next_event() const {
  Time next = Time::max();
  for (const Call& call : calls_) {
    if (!call.items.empty()) next = std::min(next, call.until);
  }
  return next;
}

}  // namespace tributary
