// One collective at a time: all ranks arrive, each copies what it receives, all leave.
#include "comm/local/thread_group.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
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

/// [rank]: the rank's call in the current collective; empty until it arrives.
using Calls = std::vector<std::optional<Collective>>;

/// Ok when the calls of all ranks match; kInvalidArgument that names the first rank that differs.
Status check_match(const Calls& calls) {
  const auto mismatch = [](std::size_t rank, std::string message) -> Status {
    return {ErrorCode::kInvalidArgument,
            fmt::format("rank {} does not match its peers: {}", rank, message)};
  };
  const Collective& first = *calls[0];
  // A broadcast's root has its data in `send`, the others have theirs in `recv`.
  const auto broadcast_bytes = [](const Collective& call) {
    return call.send.size() + call.recv.size();
  };
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const Collective& call = *calls[rank];
    if (call.kind != first.kind) {
      return mismatch(rank, fmt::format("it calls {}, rank 0 calls {}", collective_name(call.kind),
                                        collective_name(first.kind)));
    }
    if (call.kind == CollectiveKind::kBroadcast &&
        (call.root != first.root || broadcast_bytes(call) != broadcast_bytes(first))) {
      return mismatch(
          rank, fmt::format("broadcast of {} bytes from {}, on rank 0 {} from {}",
                            broadcast_bytes(call), call.root, broadcast_bytes(first), first.root));
    }
    if (call.kind == CollectiveKind::kAllGather &&
        !std::ranges::equal(call.recv_counts, first.recv_counts)) {
      return mismatch(rank, "the counts of all_gather differ from those on rank 0");
    }
    if (call.kind != CollectiveKind::kAllToAll) continue;
    for (std::size_t to = 0; to < calls.size(); ++to) {
      if (call.send_counts[to] != calls[to]->recv_counts[rank]) {
        return mismatch(rank, fmt::format("all_to_all sends {} bytes to rank {}, which expects {}",
                                          call.send_counts[to], to, calls[to]->recv_counts[rank]));
      }
    }
  }
  return {};
}

}  // namespace

/// One collective at a time: all ranks arrive, each copies what it receives, all leave.
class ThreadGroupState {
 public:
  ThreadGroupState(int ranks, Clock& clock)
      : clock_(clock),
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

  void poison(const Status& reason) {
    const std::lock_guard lock(mutex_);
    poison_locked(reason);
  }

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
  std::mutex mutex_;
  Condition changed_;
  Calls calls_;              // [rank]; written on arrival, read by all between arrival and leaving
  std::vector<bool> taken_;  // [rank]
  int arrived_ = 0;          // ranks that have arrived
  int copying_ = 0;          // ranks that are reading peers' memory
  int copied_ = 0;           // ranks that have received everything
  Status cause_;
  // Written under the lock, and read without it by ranks that look before they park.
  std::atomic<std::uint64_t> started_{0};    // the latest collective that all ranks entered
  std::atomic<std::uint64_t> completed_{0};  // the latest collective that all ranks finished
  std::atomic<bool> stop_{false};            // cause_ is set; also read while copying
};

Status ThreadGroupState::collective(int rank, const Collective& call, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!cause_.ok()) return cause_;
  const std::uint64_t number = completed_ + 1;
  calls_[static_cast<std::size_t>(rank)] = call;
  if (++arrived_ == size()) {
    poison_locked(check_match(calls_));
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
    if (cause_.ok() && ++copied_ == size()) {
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
  for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
    if (!calls_[rank]) missing += fmt::format(" {}", rank);
  }
  if (missing.empty()) {
    return {ErrorCode::kDeadlineExceeded,
            fmt::format("{}: {} of {} ranks had their data at the deadline",
                        collective_name(call.kind), copied_, size())};
  }
  return {ErrorCode::kDeadlineExceeded,
          fmt::format("{}: {} of {} ranks arrived before the deadline; missing:{}",
                      collective_name(call.kind), arrived_, size(), missing)};
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
  for (std::size_t peer = 0; peer < calls_.size(); ++peer) {
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
  ThreadCommunicator(int rank, std::shared_ptr<ThreadGroupState> state)
      : Communicator(rank, state->size(), state->clock()), state_(std::move(state)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "threads"; }

 protected:
  Status do_collective(const Collective& call, Deadline deadline) override {
    return state_->collective(rank(), call, deadline);
  }
  void do_poison(const Status& reason) override { state_->poison(reason); }
  Status do_look_for_failure() override { return state_->cause(); }

 private:
  std::shared_ptr<ThreadGroupState> state_;
};

}  // namespace

ThreadGroup::ThreadGroup(int ranks) : ThreadGroup(ranks, steady_clock()) {}

ThreadGroup::ThreadGroup(int ranks, Clock& clock) {
  if (ranks < 1 || ranks > kMaxRanks) {
    fail(ErrorCode::kInvalidArgument, "number of ranks is {}, expected 1 .. {}", ranks, kMaxRanks);
  }
  state_ = std::make_shared<ThreadGroupState>(ranks, clock);
}

std::unique_ptr<Communicator> ThreadGroup::take(int rank) {
  state_->take(rank);
  return std::make_unique<ThreadCommunicator>(rank, state_);
}

void ThreadGroup::poison(const Status& reason) {
  state_->poison(reason);
}

}  // namespace tributary
