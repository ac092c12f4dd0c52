// Sequences that end with a block, however the block is left.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

#include "deploy/service/client/tier_client.h"

namespace tributary {

/// Two threads must not use it at once. Handles keep their addresses.
class ScopedSequences {
 public:
  explicit ScopedSequences(TierClient& client) : client_(client) {}
  ScopedSequences(const ScopedSequences&) = delete;
  ScopedSequences& operator=(const ScopedSequences&) = delete;
  /// Frees the sequences; one that cannot be freed any more ends with its lease.
  ~ScopedSequences();

  SequenceHandle& add(const SequenceHandle& sequence);
  [[nodiscard]] std::deque<SequenceHandle>& all() noexcept { return sequences_; }
  /// Frees all sequences; throws as TierClient::free().
  void free(std::optional<Deadline> deadline = {});
  /// Leaves them to their leases.
  void release() noexcept { sequences_.clear(); }

 private:
  TierClient& client_;
  std::deque<SequenceHandle> sequences_;
};

}  // namespace tributary
