#include "core/interface/recorded_calls.h"

#include <algorithm>

#include "core/base/error.h"

namespace tributary {

void RecordedCalls::run(const CallsKey& key, const std::function<void()>& calls) {
  if (!recordable_) return calls();
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) {
    calls();
    if (entries_.size() >= most_) entries_.pop_back();
    entries_.push_front({key, nullptr});
    return;
  }
  entries_.splice(entries_.begin(), entries_, found);
  const Status status = status_of([&] { run_again(entries_.front(), calls); });
  if (!status.ok()) entries_.pop_front();
  status.throw_if_error();
  if (!recordable_) entries_.clear();
}

void RecordedCalls::run_again(Entry& entry, const std::function<void()>& calls) {
  if (entry.recording == nullptr || !backend_.refill(*entry.recording, calls)) {
    entry.recording = nullptr;  // its memory first
    entry.recording = backend_.record(calls);
  }
  if (entry.recording == nullptr) {
    recordable_ = false;
    return calls();
  }
  backend_.replay(*entry.recording);
}

}  // namespace tributary
