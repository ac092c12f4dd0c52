// One collective at a time: all ranks arrive, each copies what it receives, all leave.
#include "comm/local/thread_group.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tributary {
namespace {

/// Between two pieces a copying rank looks whether the group has failed. Large enough to cost
/// nothing (a piece takes some 10 us), small enough to bound how long a failed peer must wait.
constexpr std::size_t kPieceBytes = std::size_t{128} << 10;

enum class Kind : std::uint8_t { kNone, kBroadcast, kAllGather, kAllToAll };

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kNone:
      break;
  }
  return "nothing";
}

/// What one rank brought to the collective under way. The spans are those of its caller.
struct Call {
  Kind kind = Kind::kNone;
  int root = 0;
  std::span<const std::byte> send = {};
  std::span<std::byte> recv = {};
  std::span<const std::size_t> send_counts = {};  // all_gather: the counts
  std::span<const std::size_t> recv_counts = {};
};

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// Ok when the calls of all ranks fit together; kInvalidArgument naming the first that does not.
Status check_match(std::span<const Call> calls) {
  const auto mismatch = [](std::size_t rank, std::string message) -> Status {
    return {ErrorCode::kInvalidArgument,
            fmt::format("rank {} does not match its peers: {}", rank, message)};
  };
  const Call& first = calls[0];
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    const Call& call = calls[rank];
    if (call.kind != first.kind) {
      return mismatch(rank, fmt::format("it calls {}, rank 0 calls {}", kind_name(call.kind),
                                        kind_name(first.kind)));
    }
    if (call.kind == Kind::kBroadcast &&
        (call.root != first.root || call.recv.size() != first.recv.size())) {
      return mismatch(
          rank, fmt::format("broadcast of {} bytes from {}, on rank 0 {} from {}", call.recv.size(),
                            call.root, first.recv.size(), first.root));
    }
    if (call.kind == Kind::kAllGather && !std::ranges::equal(call.send_counts, first.send_counts)) {
      return mismatch(rank, "the counts of all_gather differ from those on rank 0");
    }
    if (call.kind != Kind::kAllToAll) continue;
    for (std::size_t to = 0; to < calls.size(); ++to) {
      if (call.send_counts[to] != calls[to].recv_counts[rank]) {
        return mismatch(rank, fmt::format("all_to_all sends {} bytes to rank {}, which expects {}",
                                          call.send_counts[to], to, calls[to].recv_counts[rank]));
      }
    }
  }
  return {};
}

}  // namespace

/// One collective at a time: all ranks arrive, each copies what it receives, all leave.
class ThreadGroupState {
 public:
  explicit ThreadGroupState(int ranks)
      : calls_(static_cast<std::size_t>(ranks)), taken_(static_cast<std::size_t>(ranks), false) {}

  [[nodiscard]] int size() const noexcept { return static_cast<int>(calls_.size()); }

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

  Status collective(int rank, const Call& call, Deadline deadline);

 private:
  void poison_locked(const Status& reason) {
    if (!cause_.ok() || reason.ok()) return;
    cause_ = reason;
    stop_.store(true, std::memory_order_relaxed);
    changed_.notify_all();
  }

  [[nodiscard]] Status late(const Call& call) const;
  [[nodiscard]] bool copy_all(int rank, Deadline deadline) const;
  [[nodiscard]] bool copy(std::span<std::byte> to, std::span<const std::byte> from,
                          Deadline deadline) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Call> calls_;  // [rank]; written on arrival, read by all between arrival and leaving
  std::vector<bool> taken_;  // [rank]
  int arrived_ = 0;          // ranks that brought their call
  int copying_ = 0;          // ranks that read peers' memory now
  int copied_ = 0;           // ranks that have all they receive
  std::uint64_t started_ = 0;    // number of the newest collective to which all ranks came
  std::uint64_t completed_ = 0;  // number of the newest collective that all ranks finished
  Status cause_;
  std::atomic<bool> stop_{false};  // cause_ is set; read without the lock while copying
};

Status ThreadGroupState::collective(int rank, const Call& call, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!cause_.ok()) return cause_;
  if (deadline.expired()) {
    poison_locked({ErrorCode::kDeadlineExceeded,
                   fmt::format("rank {}: {}: the deadline passed before it began", rank,
                               kind_name(call.kind))});
  } else {
    const std::uint64_t number = completed_ + 1;
    calls_[static_cast<std::size_t>(rank)] = call;
    if (++arrived_ == size()) {
      poison_locked(check_match(calls_));
      if (cause_.ok()) started_ = number;
      changed_.notify_all();
    }
    const auto wait_for = [&](const std::uint64_t& counter) {
      const auto over = [&] { return counter >= number || !cause_.ok(); };
      if (!changed_.wait_until(lock, deadline.when(), over)) poison_locked(late(call));
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
        std::ranges::fill(calls_, Call{});
      }
      if (completed_ == number || !cause_.ok()) changed_.notify_all();
      wait_for(completed_);
    }
    // Looked at before the cause: what completed stays complete, whatever the next call did.
    if (completed_ >= number) return {};
  }
  // Peers may be reading this rank's memory; each stops at its next piece.
  changed_.wait(lock, [&] { return copying_ == 0; });
  return cause_;
}

Status ThreadGroupState::late(const Call& call) const {
  std::string missing;
  for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
    if (calls_[rank].kind == Kind::kNone) missing += fmt::format(" {}", rank);
  }
  if (missing.empty()) {
    return {ErrorCode::kDeadlineExceeded,
            fmt::format("{}: {} of {} ranks had their data at the deadline", kind_name(call.kind),
                        copied_, size())};
  }
  return {ErrorCode::kDeadlineExceeded,
          fmt::format("{}: {} of {} ranks came before the deadline; missing:{}",
                      kind_name(call.kind), arrived_, size(), missing)};
}

bool ThreadGroupState::copy(std::span<std::byte> to, std::span<const std::byte> from,
                            Deadline deadline) const {
  for (std::size_t done = 0; done < from.size(); done += kPieceBytes) {
    if (stop_.load(std::memory_order_relaxed) || deadline.expired()) return false;
    const std::span<const std::byte> piece =
        from.subspan(done, std::min(kPieceBytes, from.size() - done));
    std::memcpy(to.data() + done, piece.data(), piece.size());
  }
  return true;
}

bool ThreadGroupState::copy_all(int rank, Deadline deadline) const {
  const auto self = static_cast<std::size_t>(rank);
  const Call& own = calls_[self];
  if (own.kind == Kind::kBroadcast) {
    return rank == own.root ||
           copy(own.recv, calls_[static_cast<std::size_t>(own.root)].send, deadline);
  }
  std::size_t recv_begin = 0;
  for (const Call& peer : calls_) {
    std::span<const std::byte> block = peer.send;
    if (own.kind == Kind::kAllToAll) {
      block = block.subspan(sum(peer.send_counts.first(self)), peer.send_counts[self]);
    }
    if (!copy(own.recv.subspan(recv_begin, block.size()), block, deadline)) return false;
    recv_begin += block.size();
  }
  return true;
}

namespace {

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(int rank, std::shared_ptr<ThreadGroupState> state)
      : Communicator(rank, state->size()), state_(std::move(state)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "threads"; }

 protected:
  Status do_broadcast(std::span<std::byte> data, int root, Deadline deadline) override {
    return state_->collective(
        rank(), {.kind = Kind::kBroadcast, .root = root, .send = data, .recv = data}, deadline);
  }

  Status do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<const std::size_t> counts, Deadline deadline) override {
    return state_->collective(
        rank(), {.kind = Kind::kAllGather, .send = send, .recv = recv, .send_counts = counts},
        deadline);
  }

  Status do_all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                       std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                       Deadline deadline) override {
    return state_->collective(rank(),
                              {.kind = Kind::kAllToAll,
                               .send = send,
                               .recv = recv,
                               .send_counts = send_counts,
                               .recv_counts = recv_counts},
                              deadline);
  }

  void do_poison(const Status& reason) override { state_->poison(reason); }
  Status do_look_for_failure() override { return state_->cause(); }

 private:
  std::shared_ptr<ThreadGroupState> state_;
};

}  // namespace

ThreadGroup::ThreadGroup(int ranks) {
  if (ranks < 1 || ranks > kMaxRanks) {
    fail(ErrorCode::kInvalidArgument, "number of ranks is {}, expected 1 .. {}", ranks, kMaxRanks);
  }
  state_ = std::make_shared<ThreadGroupState>(ranks);
}

std::unique_ptr<Communicator> ThreadGroup::take(int rank) {
  state_->take(rank);
  return std::make_unique<ThreadCommunicator>(rank, state_);
}

void ThreadGroup::poison(const Status& reason) {
  state_->poison(reason);
}

}  // namespace tributary
