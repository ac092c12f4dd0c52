#include "core/interface/recorded_calls.h"

#include <algorithm>

#include "core/base/error.h"

namespace tributary {
namespace {

std::vector<Call> without_plan_data(std::span<const Call> calls) {
  std::vector<Call> kept(calls.begin(), calls.end());
  for (Call& call : kept) {
    visit_memory(call, [](auto& part) {
      if constexpr (kIsPlanData<decltype(part)>) part = {};
    });
  }
  return kept;
}

}  // namespace

void RecordedCalls::run(std::span<const Call> calls, std::uint64_t kind) {
  if (calls.empty()) return;
  if (!recordable_) return backend_.call(calls);
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.kind == kind && std::ranges::equal(entry.calls, calls);
  });
  if (found == entries_.end()) {
    backend_.call(calls);
    if (entries_.size() >= most_) entries_.pop_back();
    entries_.push_front({without_plan_data(calls), kind, nullptr});
    return;
  }
  entries_.splice(entries_.begin(), entries_, found);
  const Status status = status_of([&] { run_again(entries_.front(), calls); });
  if (!status.ok()) entries_.pop_front();
  status.throw_if_error();
  if (!recordable_) entries_.clear();
}

void RecordedCalls::run_again(Entry& entry, std::span<const Call> calls) {
  if (entry.recording == nullptr || !backend_.refill(*entry.recording, calls)) {
    entry.recording = nullptr;  // its memory first
    entry.recording = backend_.record(calls);
  }
  if (entry.recording == nullptr) {
    recordable_ = false;
    return backend_.call(calls);
  }
  backend_.replay(*entry.recording);
}

}  // namespace tributary
