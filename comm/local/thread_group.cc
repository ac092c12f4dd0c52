// One collective at a time: all ranks arrive, each copies what it receives, all leave.
#include "comm/local/thread_group.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/awake_wait.h"
#include "core/base/look_for.h"
#include "core/interface/clock.h"
#include "core/interface/condition.h"

namespace tributary {
namespace {

/// A copying rank checks for failures of the group after each piece. A piece is large enough that
/// the check costs nothing (it takes about 10 us) and small enough to bound a failed peer's wait.
constexpr std::size_t kPieceBytes = std::size_t{128} << 10;

/// [rank]: the rank's call in the current collective; empty until it arrives, and for an absent
/// rank.
using Calls = std::vector<std::optional<Collective>>;
/// The ranks that take part, ascending.
using Members = std::vector<std::size_t>;

/// Ok when the calls of all members match; kInvalidArgument that names the first one that differs.
Status check_match(const Calls& calls, const Members& members) {
  const auto mismatch = [](std::size_t rank, std::string message) -> Status {
    return {ErrorCode::kInvalidArgument,
            fmt::format("rank {} does not match its peers: {}", rank, message)};
  };
  const std::size_t judge = members.front();
  const Collective& first = *calls[judge];
  // A broadcast's root has its data in `send`, the others have theirs in `recv`.
  const auto broadcast_bytes = [](const Collective& call) {
    return call.send.size() + call.recv.size();
  };
  for (const std::size_t rank : members) {
    const Collective& call = *calls[rank];
    if (call.kind != first.kind) {
      return mismatch(rank, fmt::format("it calls {}, rank {} calls {}", collective_name(call.kind),
                                        judge, collective_name(first.kind)));
    }
    if (call.kind == CollectiveKind::kBroadcast &&
        (call.root != first.root || broadcast_bytes(call) != broadcast_bytes(first))) {
      return mismatch(rank, fmt::format("broadcast of {} bytes from {}, on rank {} {} from {}",
                                        broadcast_bytes(call), call.root, judge,
                                        broadcast_bytes(first), first.root));
    }
    if (call.kind == CollectiveKind::kAllGather &&
        !std::ranges::equal(call.recv_counts, first.recv_counts)) {
      return mismatch(rank,
                      fmt::format("the counts of all_gather differ from those on rank {}", judge));
    }
    if (call.kind != CollectiveKind::kAllToAll) continue;
    for (const std::size_t to : members) {
      if (call.send_counts[to] != calls[to]->recv_counts[rank]) {
        return mismatch(rank, fmt::format("all_to_all sends {} bytes to rank {}, which expects {}",
                                          call.send_counts[to], to, calls[to]->recv_counts[rank]));
      }
    }
  }
  return {};
}

}  // namespace

/// One collective at a time: all members arrive, each copies what it receives, all leave.
class ThreadGroupState {
 public:
  ThreadGroupState(int ranks, std::span<const int> members, Clock& clock)
      : clock_(clock),
        members_(members.begin(), members.end()),
        calls_(static_cast<std::size_t>(ranks)),
        taken_(static_cast<std::size_t>(ranks), false) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(calls_.size()); }
  [[nodiscard]] Clock& clock() const noexcept { return clock_; }

  void take(int rank) {
    const std::lock_guard lock(mutex_);
    if (rank < 0 || rank >= size()) {
      fail(ErrorCode::kInvalidArgument, "rank is {}, expected 0 .. {}", rank, size() - 1);
    }
    if (taken_[static_cast<std::size_t>(rank)]) {
      fail(ErrorCode::kFailedPrecondition, "the communicator of rank {} was taken before", rank);
    }
    taken_[static_cast<std::size_t>(rank)] = true;
  }

  /// The first group of `members` that `rank` has not taken from here, and takes now.
  [[nodiscard]] std::shared_ptr<ThreadGroupState> take_survivors(int rank,
                                                                 std::span<const int> members);

  void poison(const Status& reason) {
    const std::lock_guard lock(mutex_);
    poison_locked(reason);
  }

  /// Poisons this group, and the survivors, also those that are still to come.
  void end(const Status& reason);

  [[nodiscard]] Status cause() {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  Status collective(int rank, const Collective& call, Deadline deadline);

 private:
  void poison_locked(const Status& reason) {
    if (!cause_.ok() || reason.ok()) return;
    cause_ = reason;
    stop_.store(true, std::memory_order_relaxed);
    changed_.notify_all();
  }

  [[nodiscard]] Status late(const Collective& call) const;
  [[nodiscard]] bool copy_all(int rank, Deadline deadline) const;
  [[nodiscard]] bool copy(std::span<std::byte> to, std::span<const std::byte> from,
                          AwakeWait& patience) const;

  Clock& clock_;
  const Members members_;
  std::mutex mutex_;
  Condition changed_;
  Calls calls_;              // [rank]; written on arrival, read by all between arrival and leaving
  std::vector<bool> taken_;  // [rank]
  std::size_t arrived_ = 0;  // members that have arrived
  std::size_t copying_ = 0;  // members that are reading peers' memory
  std::size_t copied_ = 0;   // members that have received everything
  Status cause_;
  /// By members, in the order in which a member takes them.
  std::map<std::vector<int>, std::vector<std::shared_ptr<ThreadGroupState>>> survivors_;
  Status end_;  // the reason of end()
  // Written under the lock, and read without it by ranks that look before they park.
  std::atomic<std::uint64_t> started_{0};    // the latest collective that all ranks entered
  std::atomic<std::uint64_t> completed_{0};  // the latest collective that all ranks finished
  std::atomic<bool> stop_{false};            // cause_ is set; also read while copying
};

std::shared_ptr<ThreadGroupState> ThreadGroupState::take_survivors(int rank,
                                                                   std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  auto& groups = survivors_[{members.begin(), members.end()}];
  const auto slot = static_cast<std::size_t>(rank);
  // `taken_` of survivors is guarded by this group's lock.
  auto group = std::ranges::find_if(groups, [&](const auto& g) { return !g->taken_[slot]; });
  if (group == groups.end()) {
    groups.push_back(std::make_shared<ThreadGroupState>(size(), members, clock_));
    group = groups.end() - 1;
    (*group)->end(end_);
  }
  (*group)->taken_[slot] = true;
  return *group;
}

void ThreadGroupState::end(const Status& reason) {
  const std::lock_guard lock(mutex_);
  poison_locked(reason);
  if (end_.ok()) end_ = reason;
  for (const auto& [members, groups] : survivors_) {
    for (const auto& group : groups) group->end(reason);
  }
}

Status ThreadGroupState::collective(int rank, const Collective& call, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!cause_.ok()) return cause_;
  const std::uint64_t number = completed_ + 1;
  calls_[static_cast<std::size_t>(rank)] = call;
  if (++arrived_ == members_.size()) {
    poison_locked(check_match(calls_, members_));
    if (cause_.ok()) started_ = number;
    changed_.notify_all();
  }
  const auto wait_for = [&](const std::atomic<std::uint64_t>& counter) {
    const auto over = [&] { return counter >= number || stop_; };
    if (!over()) {
      lock.unlock();
      look_for(over, clock_.look());
      lock.lock();
    }
    const AwakeWait patience(deadline, clock_.now());
    if (!clock_.wait_until(changed_, lock, patience, over)) poison_locked(late(call));
  };

  wait_for(started_);
  if (cause_.ok()) {
    ++copying_;
    lock.unlock();
    const bool whole = copy_all(rank, deadline);
    lock.lock();
    --copying_;
    if (!whole) poison_locked(late(call));
    if (cause_.ok() && ++copied_ == members_.size()) {
      completed_ = number;
      arrived_ = copied_ = 0;
      std::ranges::fill(calls_, std::nullopt);
    }
    if (completed_ == number || !cause_.ok()) changed_.notify_all();
    wait_for(completed_);
  }
  // This is checked before the cause: a completed call stays complete, whatever the next call did.
  if (completed_ >= number) return {};
  // Peers may still read this rank's memory; each stops after its current piece.
  clock_.wait(changed_, lock, [&] { return copying_ == 0; });
  return cause_;
}

Status ThreadGroupState::late(const Collective& call) const {
  std::string missing;
  for (const std::size_t rank : members_) {
    if (!calls_[rank]) missing += fmt::format(" {}", rank);
  }
  if (missing.empty()) {
    return {ErrorCode::kDeadlineExceeded,
            fmt::format("{}: {} of {} ranks had their data at the deadline",
                        collective_name(call.kind), copied_, members_.size())};
  }
  return {ErrorCode::kDeadlineExceeded,
          fmt::format("{}: {} of {} ranks arrived before the deadline; missing:{}",
                      collective_name(call.kind), arrived_, members_.size(), missing)};
}

bool ThreadGroupState::copy(std::span<std::byte> to, std::span<const std::byte> from,
                            AwakeWait& patience) const {
  for (std::size_t done = 0; done < from.size(); done += kPieceBytes) {
    if (stop_.load(std::memory_order_relaxed) || patience.over(clock_.now())) return false;
    const std::span<const std::byte> piece =
        from.subspan(done, std::min(kPieceBytes, from.size() - done));
    std::memcpy(to.data() + done, piece.data(), piece.size());
  }
  return true;
}

bool ThreadGroupState::copy_all(int rank, Deadline deadline) const {
  const auto self = static_cast<std::size_t>(rank);
  AwakeWait patience(deadline, clock_.now());
  for (const std::size_t peer : members_) {
    if (!copy(calls_[self]->block_from(static_cast<int>(peer)), calls_[peer]->block_to(rank),
              patience)) {
      return false;
    }
  }
  return true;
}

namespace {

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(int rank, std::span<const int> members,
                     std::shared_ptr<ThreadGroupState> state)
      : Communicator(rank, state->size(), members, state->clock()), state_(std::move(state)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "threads"; }

 protected:
  Status do_collective(const Collective& call, Deadline deadline) override {
    return state_->collective(rank(), call, deadline);
  }
  void do_poison(const Status& reason) override { state_->poison(reason); }
  Status do_look_for_failure() override { return state_->cause(); }
  void do_interrupt(const Status& reason) override { state_->poison(reason); }
  std::unique_ptr<Communicator> do_survivors(std::span<const int> members,
                                             std::uint64_t /*generation*/) override {
    return std::make_unique<ThreadCommunicator>(rank(), members,
                                                state_->take_survivors(rank(), members));
  }

 private:
  std::shared_ptr<ThreadGroupState> state_;
};

}  // namespace

ThreadGroup::ThreadGroup(int ranks) : ThreadGroup(ranks, steady_clock()) {}

ThreadGroup::ThreadGroup(int ranks, Clock& clock) {
  if (ranks < 1 || ranks > kMaxRanks) {
    fail(ErrorCode::kInvalidArgument, "number of ranks is {}, expected 1 .. {}", ranks, kMaxRanks);
  }
  members_.resize(static_cast<std::size_t>(ranks));
  std::iota(members_.begin(), members_.end(), 0);
  state_ = std::make_shared<ThreadGroupState>(ranks, members_, clock);
}

std::unique_ptr<Communicator> ThreadGroup::take(int rank) {
  state_->take(rank);
  return std::make_unique<ThreadCommunicator>(rank, members_, state_);
}

void ThreadGroup::poison(const Status& reason) {
  state_->end(reason);
}

}  // namespace tributary
