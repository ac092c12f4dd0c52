// Sequences of backend calls that come again and again, as one call each where the backend can
// (CUDA graphs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <list>
#include <memory>
#include <vector>

#include "core/interface/backend.h"

namespace tributary {

/// What tells a sequence of calls from others beside its plan data: addresses, counts, which calls.
class CallsKey {
 public:
  CallsKey(std::initializer_list<std::uint64_t> parts) : parts_(parts) {}
  void add(std::uint64_t part) { parts_.push_back(part); }
  friend bool operator==(const CallsKey&, const CallsKey&) = default;

 private:
  std::vector<std::uint64_t> parts_;
};
[[nodiscard]] inline std::uint64_t key_of(const void* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address);
}

/// Makes calls one by one when their key comes for the first time, so that what comes once costs no
/// recording and a device has loaded what it needs; from the second time on replays a recording,
/// refilled with the calls' plan data. Keys that were not used for longest are forgotten.
class RecordedCalls {
 public:
  /// Keys remembered: at most `most`, >= 1.
  RecordedCalls(Backend& backend, std::size_t most) : backend_(backend), most_(most) {}

  /// `calls` as Backend::record takes them. Equal keys of different calls cost a recording each
  /// time, nothing else. What `calls` or the backend throws passes through: the calls may have been
  /// made in part, and the key is forgotten.
  void run(const CallsKey& key, const std::function<void()>& calls);

 private:
  struct Entry {
    CallsKey key;
    std::unique_ptr<Recording> recording;  // null: seen once
  };
  void run_again(Entry& entry, const std::function<void()>& calls);

  Backend& backend_;
  std::size_t most_;
  std::list<Entry> entries_;  // the last one used in front
  bool recordable_ = true;    // false once the backend said that it has nothing to gain
};

}  // namespace tributary
