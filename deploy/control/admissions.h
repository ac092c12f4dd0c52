// Admission over all pools: asks one after the other until one takes the sequence; the same request
// under the same key gets the same answer.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "deploy/control/pool_calls.h"
#include "deploy/control/pool_choice.h"
#include "deploy/control/pool_registry.h"
#include "deploy/tier/admission_answer.h"

namespace tributary {

struct AdmissionResult {
  Status status;
  AdmissionAnswer answer;  // where it is ok
  int retry_after_s = 0;   // of kPoolFull
};

class Admissions {
 public:
  struct Config {
    std::chrono::milliseconds timeout{10'000};  // of one admission, over all pools that it asks
    std::size_t max_pending = 1024;
    /// Keys that are remembered; the oldest are forgotten. A client repeats a request within
    /// seconds, so this need not reach further.
    std::size_t max_keys = 65'536;
  };
  /// Sends `message`, whose `request` it fills in, and calls back as PoolCalls does.
  using CallPool = std::function<void(const std::string& pool, ToPool message,
                                      ControlClock::time_point deadline, PoolCalls::Done done)>;
  using Done = std::function<void(const AdmissionResult&)>;

  Admissions(PoolRegistry& registry, const Config& config, CallPool call_pool,
             ControlClock::time_point now);

  /// Calls `done` once, now or later: kUnavailable, kTooLarge, kPoolFull (also for too many pending
  /// admissions), kDeadlineExceeded, kAlreadyExists (the key of another request), or what the pool
  /// said.
  void admit(const AdmissionRequest& request, ControlClock::time_point now, Done done);

  /// Keys of sequences that a pool brought along; before the registry forgets the pool's list.
  void restore(const std::string& pool, const std::vector<SequenceInfo>& sequences);

  [[nodiscard]] std::size_t pending() const noexcept { return pending_; }
  /// Finished admissions by outcome; kOk: admitted.
  [[nodiscard]] const std::array<std::uint64_t, kErrorCodes>& results() const noexcept {
    return results_;
  }
  /// Answered out of memory, in addition.
  [[nodiscard]] std::uint64_t repeated() const noexcept { return repeated_; }

 private:
  struct Pending;
  struct Keyed {
    AdmissionRequest request;
    bool spread_known = true;  // false: restored, pools do not keep it
    std::string pool;
    SequenceInfo sequence;  // id 0: still pending
    std::vector<Done> waiting;
    std::uint64_t mark = 0;  // of its entry in key_order_
  };

  /// True: the key answered, or will.
  bool answer_by_key(const AdmissionRequest& request, Done& done);
  void ask_next(const std::shared_ptr<Pending>& pending);
  void take(const std::shared_ptr<Pending>& pending, const std::string& pool, SequenceId id,
            const PoolReply& reply);
  void finish(const std::shared_ptr<Pending>& pending, const AdmissionResult& result);
  [[nodiscard]] AdmissionResult refusal(ErrorCode code, std::string message) const;
  [[nodiscard]] AdmissionResult admitted(const std::string& pool,
                                         const SequenceInfo& sequence) const;
  Keyed& remember(const std::string& key);

  PoolRegistry& registry_;
  Config config_;
  CallPool call_pool_;
  ControlClock::time_point start_;
  std::size_t pending_ = 0;
  std::unordered_map<std::string, Keyed> keyed_;
  struct Mark {
    std::string key;
    std::uint64_t mark = 0;
  };
  std::deque<Mark> key_order_;
  std::uint64_t next_mark_ = 0;
  std::array<std::uint64_t, kErrorCodes> results_{};
  std::uint64_t repeated_ = 0;
};

/// What GET and POST answer for a sequence of a registered pool.
[[nodiscard]] AdmissionAnswer make_answer(const RegisterPool& pool, const SequenceInfo& sequence);

}  // namespace tributary
