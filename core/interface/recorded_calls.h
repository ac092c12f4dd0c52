// Repeated lists of backend calls, each replayed as one if the backend can (CUDA graphs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "core/interface/backend.h"

namespace tributary {

/// Makes the calls of a new list one by one: a list that is not repeated costs no recording, and a
/// device loads what it needs. From the second time on replays a recording, refilled with the
/// list's plan data. Lists are equal if everything except their plan data is. The least recently
/// used ones are forgotten. Allocates only for a new list or a new recording.
class RecordedCalls {
 public:
  /// Remembers at most `most` lists, >= 1.
  RecordedCalls(Backend& backend, std::size_t most) : backend_(backend), most_(most) {}

  /// Equal lists of different `kind` are different lists: plan data of another kind makes a backend
  /// launch other kernels. If the backend throws, the exception passes through, some of the calls
  /// may have been made, and the list is forgotten.
  void run(std::span<const Call> calls, std::uint64_t kind = 0);

 private:
  struct Entry {
    std::vector<Call> calls;  // without plan data
    std::uint64_t kind = 0;
    std::unique_ptr<Recording> recording;  // null: seen once
  };
  void run_again(Entry& entry, std::span<const Call> calls);

  Backend& backend_;
  std::size_t most_;
  std::list<Entry> entries_;  // the most recently used one first
  bool recordable_ = true;    // false once the backend has said that recordings gain nothing
};

}  // namespace tributary
