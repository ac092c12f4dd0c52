// The time at which each sequence was last heard of; a sequence whose client is silent for too long
// is ended.
#pragma once

#include <list>
#include <optional>
#include <unordered_map>

#include "core/base/deadline.h"
#include "core/cache/sequence_table.h"

namespace tributary {

/// Sequences in the order of their last message. All operations take constant time, except a late
/// touch(), which takes as many steps as others have been touched since.
class LeaseBook {
 public:
  explicit LeaseBook(Duration lease) : lease_(lease) {}

  /// Begins the lease of a new sequence.
  void add(SequenceId id, Time now);
  /// Records a message about the sequence at `then`; unknown sequences are ignored.
  void touch(SequenceId id, Time then);
  void remove(SequenceId id);
  /// A sequence whose lease is over, if there is one; it stays until remove().
  [[nodiscard]] std::optional<SequenceId> expired(Time now) const;
  /// When the next lease ends, unless it is renewed; no value without sequences.
  [[nodiscard]] std::optional<Time> next_end() const;

 private:
  struct Entry {
    SequenceId id;
    Time touched;
  };
  Duration lease_;
  std::list<Entry> order_;  // longest silent first
  std::unordered_map<SequenceId, std::list<Entry>::iterator> where_;
};

}  // namespace tributary
