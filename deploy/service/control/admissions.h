// Admission over all pools: asks one after the other until one takes the sequence. The same request
// under the same key, with the same secret, gets the same answer.
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

#include "core/interface/clock.h"
#include "deploy/service/control/pool_calls.h"
#include "deploy/service/control/pool_choice.h"
#include "deploy/service/control/pool_registry.h"
#include "deploy/service/protocol/admission.h"

namespace tributary {

struct AdmissionResult {
  Status status;
  SequenceHandle sequence;  // where it is ok
  int retry_after_s = 0;    // of kPoolFull
};

class Admissions {
 public:
  struct Config {
    std::chrono::milliseconds timeout{10'000};  // of one admission, over all pools that it asks
    std::size_t max_pending = 1024;
    /// Number of keys that are remembered; the oldest are forgotten. A client repeats a request
    /// within seconds, so a longer memory is not needed.
    std::size_t max_keys = 65'536;
    std::chrono::milliseconds key_lifetime{600'000};  // and none longer than this
  };
  /// Sends `message`, whose `request` it fills in, and calls back as PoolCalls does.
  using CallPool = std::function<void(const std::string& pool, ToPool message, Time deadline,
                                      PoolCalls::Done done)>;
  using Done = std::function<void(const AdmissionResult&)>;

  /// The clock and the registry outlive this object.
  Admissions(const Clock& clock, PoolRegistry& registry, const Config& config, CallPool call_pool);

  /// Calls `done` once, now or later: kUnavailable, kTooLarge, kPoolFull (also for too many pending
  /// admissions), kDeadlineExceeded, kAlreadyExists (the key of another request, or a repeat
  /// without the first one's secret), or the pool's error.
  void admit(const AdmitRequest& request, Done done);

  /// Restores the keys of a pool's sequences; call it before the registry drops the pool's list.
  void restore(const std::string& pool, const std::vector<SequenceInfo>& sequences);

  [[nodiscard]] std::size_t pending() const noexcept { return pending_; }
  /// Finished admissions by outcome; kOk: admitted.
  [[nodiscard]] const std::array<std::uint64_t, kErrorCodes>& results() const noexcept {
    return results_;
  }
  /// Admissions answered from memory, in addition.
  [[nodiscard]] std::uint64_t repeated() const noexcept { return repeated_; }

 private:
  struct Pending;
  struct Keyed {
    AdmitRequest request;
    bool all_known = true;  // false: restored, pools keep neither spread nor parent
    std::string pool;
    SequenceInfo sequence;  // id 0: still pending
    std::vector<Done> waiting;
    std::uint64_t mark = 0;  // of its entry in key_order_
  };

  /// True if the key answers the request, now or later.
  bool answer_by_key(const AdmitRequest& request, Done& done);
  void check_parent(SequenceId id) const;
  void ask_next(const std::shared_ptr<Pending>& pending);
  void take(const std::shared_ptr<Pending>& pending, const std::string& pool, SequenceId id,
            const PoolReply& reply);
  void finish(const std::shared_ptr<Pending>& pending, const AdmissionResult& result);
  [[nodiscard]] AdmissionResult refusal(ErrorCode code, std::string message) const;
  [[nodiscard]] AdmissionResult admitted(const std::string& pool,
                                         const SequenceInfo& sequence) const;
  Keyed& remember(const std::string& key);
  void forget_old();

  const Clock& clock_;
  PoolRegistry& registry_;
  Config config_;
  CallPool call_pool_;
  Time start_;
  std::size_t pending_ = 0;
  std::unordered_map<std::string, Keyed> keyed_;
  struct Mark {
    std::string key;
    std::uint64_t mark = 0;
    Time since;
  };
  std::deque<Mark> key_order_;
  std::uint64_t next_mark_ = 0;
  std::array<std::uint64_t, kErrorCodes> results_{};
  std::uint64_t repeated_ = 0;
};

/// Whether the workers that a pool names for a sequence are its own.
[[nodiscard]] bool is_of_pool(const SequenceInfo& sequence, const RegisterPool& pool) noexcept;
/// The answer of GET and POST for a sequence of a registered pool.
[[nodiscard]] SequenceHandle make_handle(const RegisterPool& pool, const SequenceInfo& sequence);

}  // namespace tributary
