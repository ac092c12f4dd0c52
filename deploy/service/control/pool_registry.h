// The known pools and the sequences that they hold, as the pools reported them. It does no input or
// output; times are passed in.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/deadline.h"
#include "deploy/service/control/ended_sequences.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

enum class PoolState { kServing, kDraining, kLost };
inline constexpr std::size_t kPoolStates = 3;
/// `serving`, `draining`, `lost`.
[[nodiscard]] std::string_view pool_state_name(PoolState state) noexcept;

struct Pool {
  RegisterPool about;  // without its sequences
  /// Of workers whose places others have taken: handles may still name them.
  std::deque<std::string> former_addresses;
  PoolState state = PoolState::kServing;
  Time since;  // in this state
  Time heard;  // its last heartbeat, or registration
  std::optional<Heartbeat> heartbeat;
  std::string lost_because;  // where it is lost
  /// A lost pool that has only been silent keeps its sequences until then: it may come back, and is
  /// not counted as lost before.
  Time gone_at;
  bool gone = false;
  std::unordered_set<SequenceId> sequences;
  /// Pages of admissions that the pool has not answered, and of those that it has answered since
  /// its last heartbeat, which does not count them.
  std::int64_t pages_asked = 0;
  std::int64_t pages_admitted = 0;

  [[nodiscard]] std::int64_t total_pages() const noexcept;
  /// Pages of a worker that is being emptied, or lost, do not count as free.
  [[nodiscard]] std::int64_t free_pages() const noexcept;
  /// Whether it could still register with all that it holds, and a sequence of so many pages.
  [[nodiscard]] bool could_register_with(std::int64_t pages) const noexcept;
};

/// Ids of this control plane: its incarnation, then a counter. A control plane begins with the
/// quarter seconds of the system's clock since 2024-01-01 UTC, and passes every incarnation that a
/// pool brings, so that a clock that is wrong gives no id twice. Incarnations lie on a circle,
/// where one half is later than a number and the other earlier: none uses them up, however large.
class SequenceIds {
 public:
  explicit SequenceIds(std::uint32_t incarnation) : incarnation_(incarnation) {}

  [[nodiscard]] std::uint32_t incarnation() const noexcept { return incarnation_; }
  /// Whether `id` is one of the present incarnation's.
  [[nodiscard]] bool gave(SequenceId id) const noexcept {
    return id >> 32 == incarnation_ && static_cast<std::uint32_t>(id) <= counter_;
  }
  /// Makes the incarnation later than `other`.
  void pass(std::uint32_t other) noexcept;
  [[nodiscard]] SequenceId next() noexcept;

 private:
  std::uint32_t incarnation_;
  std::uint32_t counter_ = 0;
};
/// At least 1: 0 means none.
[[nodiscard]] std::uint32_t incarnation_at(std::chrono::system_clock::time_point now);

/// Pages of a whole sequence.
[[nodiscard]] std::int64_t pages_of(std::int64_t prompt_tokens,
                                    std::int64_t max_new_tokens) noexcept;

class PoolRegistry {
 public:
  explicit PoolRegistry(std::uint32_t incarnation) : ids_(incarnation) {}

  /// Adds the pool, with the sequences that it brings. A lost pool of the same name is replaced, or
  /// restored if it is the same run. Throws, with nothing changed, kAlreadyExists for a name under
  /// which another run serves; kInvalidArgument for a shape other than the tier's (the message
  /// names the field and both values); kPoolFull for too many pools.
  void register_pool(RegisterPool about, Time now);
  /// The pool is saying which sequences it holds, in many messages: until then no sequence of this
  /// run, and none that is not known, has ended.
  void expect(const RegisterPool& about, Time until);
  /// Whether a pool that has not registered since the `start` of this control plane may hold a
  /// sequence that is not known.
  [[nodiscard]] bool may_be_registered(SequenceId id, Time start, Time now) const;
  /// Throws kMalformedInput if it reports other workers than the registration.
  void heartbeat(const std::string& name, Heartbeat heartbeat, Time now);
  void set_draining(const std::string& name, bool draining, Time now);
  /// Throws kMalformedInput for a rank that the pool does not have.
  void worker_joined(const std::string& name, WorkerInfo worker);
  /// The pool is lost, and its sequences with it. No effect on a lost or unknown one. With
  /// `gone_at` its sequences stay until then (or, of a lost one, no longer than until then): the
  /// network may be cut, and the same run brings them back.
  void lose(const std::string& name, std::string because, Time now,
            std::optional<Time> gone_at = {});
  /// The pool is not known any more, and its sequences have ended. No effect on an unknown one.
  void forget(const std::string& name, Time now);
  /// Nobody was there to hear pools for so long: those that were lost before have so much longer.
  void wait_longer(Time now, Duration stalled);
  /// Gives up the silent pools whose time is over, and ends their sequences. Returns their names.
  std::vector<std::string> lose_silent(Time now);

  /// It has just been admitted with so many pages.
  void add_sequence(const std::string& pool, SequenceId id, std::int64_t pages = 0);
  void end_sequence(SequenceId id, SequenceEnd reason, Time now);
  /// Counts pages towards `pages_asked` (negative: answered).
  void ask_pages(const std::string& pool, std::int64_t pages);

  [[nodiscard]] const Pool* find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, Pool>& pools() const noexcept { return pools_; }
  /// The pool that holds a sequence; null if no pool does.
  [[nodiscard]] const std::string* pool_of(SequenceId id) const;
  [[nodiscard]] std::optional<SequenceEnd> end_of(SequenceId id) const { return ended_.find(id); }
  [[nodiscard]] SequenceIds& ids() noexcept { return ids_; }
  [[nodiscard]] const SequenceIds& ids() const noexcept { return ids_; }
  struct Ends {
    std::uint64_t pools_lost = 0;
    /// At which sequences ended, the latest last; at most kEndTimes of them.
    std::deque<Time> times;
  };
  [[nodiscard]] const Ends& ends() const noexcept { return ends_; }

  static constexpr std::size_t kEndTimes = 256;
  /// More names than any tier that we can imagine. A pool in a restart loop with random names must
  /// not fill the memory. Lost pools make room, the longest lost first.
  static constexpr std::size_t kMaxPools = 256;
  static constexpr std::size_t kMaxEnded = 100'000;
  static constexpr std::size_t kMaxFormer = 256;  // addresses of a pool

 private:
  [[nodiscard]] Pool& at(const std::string& name);
  void check_shape(const RegisterPool& about) const;
  void make_room(const std::string& name, Time now);
  void end_all(Pool& pool, SequenceEnd reason, Time now);
  /// A lost pool does not come back with its sequences. No effect the second time.
  void give_up(Pool& pool, Time now);
  void note_end(Time now);

  SequenceIds ids_;
  std::map<std::string, Pool> pools_;
  std::unordered_map<SequenceId, const std::string*> pool_of_;  // keys of pools_
  EndedSequences ended_{kMaxEnded};
  Ends ends_;
  Time expected_until_;
};

/// Of all known pools, former ones too.
[[nodiscard]] std::vector<std::string> worker_addresses(const PoolRegistry& registry);

/// How many sequences they hold.
[[nodiscard]] std::size_t sequences_of(const PoolRegistry& registry) noexcept;
[[nodiscard]] bool any_serving(const PoolRegistry& registry);
/// Names of pools that have been silent since before `since`.
[[nodiscard]] std::vector<std::string> silent_pools(const PoolRegistry& registry, Time since);

}  // namespace tributary
