// Questions about running sequences and their ends, brought to the pools that hold them.
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
  HeldSequences(PoolRegistry& registry, std::chrono::milliseconds timeout,
                Admissions::CallPool call_pool, ControlClock::time_point now);

  // `done` is called once, now or later, with what the pool said. Both throw, and do not call it,
  // for a sequence that no pool holds: kNotFound, kPoolLost, or kUnavailable while its pool may
  // still register.

  /// The sequence as its pool has it now, where the status is ok.
  void query(SequenceId id, std::function<void(const Status&, const SequenceHandle&)> done);
  /// Ends the sequence; it is not an error if it has ended. `pool` holds it, as its admission said:
  /// where that is registered and does not know the sequence, it has ended; may be empty.
  void free(SequenceId id, const std::string& pool, std::function<void(const Status&)> done);

 private:
  [[noreturn]] void fail_unknown(SequenceId id) const;

  PoolRegistry& registry_;
  std::chrono::milliseconds timeout_;
  Admissions::CallPool call_pool_;
  ControlClock::time_point start_;
};

}  // namespace tributary
