// Requests about running sequences and their ends, sent to the pools that hold them.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "deploy/service/control/admissions.h"
#include "deploy/service/control/pool_registry.h"

namespace tributary {

class HeldSequences {
 public:
  /// `timeout`: for a pool's answer. `call_pool` as for Admissions.
  HeldSequences(const Clock& clock, PoolRegistry& registry, std::chrono::milliseconds timeout,
                Admissions::CallPool call_pool);

  // `done` is called once, now or later, with the pool's answer. Both throw, and do not call it,
  // for a sequence that no pool holds: kNotFound, kPoolLost, or kUnavailable while its pool may
  // still register.

  /// Returns the sequence in its pool's present state, if the status is ok.
  void query(SequenceId id, std::function<void(const Status&, const SequenceHandle&)> done);
  /// Ends the sequence; it is not an error if it has ended. `pool` is the pool that the admission
  /// named and may be empty. If that pool is registered and does not know the sequence, the
  /// sequence has ended.
  void free(SequenceId id, const std::string& pool, std::function<void(const Status&)> done);

 private:
  [[noreturn]] void fail_unknown(SequenceId id) const;
  /// Not ok for a sequence of a pool that is lost from sight, and may come back with it.
  [[nodiscard]] Status out_of_sight(SequenceId id) const;

  const Clock& clock_;
  PoolRegistry& registry_;
  std::chrono::milliseconds timeout_;
  Admissions::CallPool call_pool_;
  Time start_;
};

}  // namespace tributary
