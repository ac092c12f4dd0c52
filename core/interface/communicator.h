// The interface that the pool needs from a group of ranks: three collectives with deadlines. An
// implementation executes a Collective; checks, deadlines, traffic and poison are handled here
// once. Implementations: comm/local (self, threads), comm/mpi, comm/nccl, comm/staged.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/collective.h"

namespace tributary {

class Clock;

/// Payload bytes that this rank sent to other ranks, by kind of collective. Its own share is a copy
/// and is not counted. A call is counted when it returns ok.
class Traffic {
 public:
  [[nodiscard]] std::uint64_t operator[](CollectiveKind kind) const {
    return bytes_[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::uint64_t& operator[](CollectiveKind kind) {
    return bytes_[static_cast<std::size_t>(kind)];
  }
  friend bool operator==(const Traffic&, const Traffic&) = default;

 private:
  std::array<std::uint64_t, kCollectiveKinds.size()> bytes_{};
};

/// A fixed group of ranks. Every rank calls the same collectives in the same order with matching
/// counts; calls come from one thread per rank, and one is under way at a time, or several in their
/// order where on_stream().
///
/// Buffers belong to the caller and stay valid and untouched until the call returns, or where
/// on_stream() until complete() returned ok. The counts are read during the call alone.
/// All blocks lie in rank order without gaps. A count may be 0 for any rank.
///
/// Failure: a missed deadline, a lost peer or bad arguments poison the communicator for good; that
/// call and every later one return the status of the first failure, and nothing more is sent. A
/// deadline that has passed when a call begins is a missed one, unless it has a hearing.
///
///   right: every rank calls all_gather, a failed one with an error in its payload;
///   wrong: a failed rank returns early, and its peers pair this call with its next one.
///
/// After a failure the ranks that are left may go on with survivors(). There ranks keep their
/// numbers; an absent rank has counts of 0 and is never the root of a broadcast.
///
///   right: lists of size() counts, 0 for the absent; block r still comes from rank r;
///   wrong: lists of members().size() counts.
///
/// Ordered with a backend (on_stream):
///
///   right: backend.merge, all_to_all, backend.merge, complete, backend.synchronize, then read;
///   wrong: all_to_all, then read, or free a buffer: the call may not even have begun.
class Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// The number of ranks, those that do not take part included.
  [[nodiscard]] int size() const noexcept { return size_; }
  /// The ranks that take part, ascending: all, unless this is a communicator of survivors.
  [[nodiscard]] std::span<const int> members() const noexcept { return members_; }
  /// `self`, `threads`, `mpi`, ...
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Whether calls are ordered with the work of one backend, as if they were its calls. Each begins
  /// after the backend's earlier work and may return before it is done; the backend's later work
  /// begins after it. Ok then means that a call was enqueued. If false, a call returns when it is
  /// done, and its buffers must be filled when it begins, unless the implementation waits for that
  /// itself.
  [[nodiscard]] virtual bool on_stream() const noexcept { return false; }

  /// Waits until all calls so far are done, and reports whether one of them or the wait failed.
  /// Returns ok at once where calls return when they are done. After a failure the collectives end
  /// without their peers, and the work enqueued behind them runs on incomplete data: wait for the
  /// backend before its buffers are freed or reused.
  Status complete(Deadline deadline);

  /// Executes this rank's part of a collective; all calls below use it. A communicator that uses
  /// another one forwards its own calls to this function.
  Status run(const Collective& call, Deadline deadline);

  /// `data` of `root` arrives in `data` of every rank; the same size everywhere.
  Status broadcast(std::span<std::byte> data, int root, Deadline deadline);

  /// `recv` = the `send` of rank 0, of rank 1, ...; `counts[r]` is the size in bytes of rank r's
  /// `send`, the same list on every rank.
  Status all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                    std::span<const std::size_t> counts, Deadline deadline);

  /// Block r of `send` (`send_counts[r]` bytes) goes to rank r; block r of `recv`
  /// (`recv_counts[r]` bytes) comes from rank r.
  Status all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                    std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                    Deadline deadline);

  /// Ends the communicator: every later call here fails with `reason`. Peers fail too: at once if
  /// the implementation can tell them, otherwise at their deadlines. An ok `reason` changes
  /// nothing.
  void poison(const Status& reason);
  [[nodiscard]] bool poisoned() const noexcept { return !poison_.ok(); }
  /// Checks whether a peer has failed, without a collective call: for a rank that waits for its
  /// peers by other means. If the result is not ok, the communicator is poisoned.
  Status look_for_failure();

  /// After a failure: the ranks whose part of the call had not come when this rank gave up, or
  /// whose connection has ended. Empty where another rank or the caller said why it failed, and
  /// where the implementation does not know.
  [[nodiscard]] virtual std::vector<int> waited_for() const { return {}; }

  /// From any thread, for one that hears of a lost peer by other means: the call that is under way
  /// here, or the next one, fails with `reason` as soon as it looks for failures. An ok `reason`,
  /// and any but the first, change nothing.
  void interrupt(const Status& reason);

  [[nodiscard]] const Traffic& traffic() const noexcept { return traffic_; }

  /// A communicator of those that go on: the same rank() and size(), but only `members` take part:
  /// ascending ranks out of members(), this one among them; where takes_newcomers(), ranks whose
  /// process is another one now as well. Its traffic begins at 0, and no message of this
  /// communicator reaches it. What this communicator was made from (a host communicator, a backend)
  /// outlives it; this communicator itself need not.
  ///
  /// This is not a collective call: it waits for nobody. All `members` make the same calls of it,
  /// with the same lists in the same order, on this communicator and on those that came from it, or
  /// join in one of them; `generation` is larger with each, and the same on all. A rank that does
  /// not is missing in the next collective there, which fails as with any missing rank.
  ///
  /// This communicator is poisoned, if it was not yet: a live rank that is not in `members` fails
  /// with that cause, or at its deadline.
  ///
  /// Throws kInvalidArgument with the rank that is wrong in `members`, kUnsupported where a lost
  /// rank ends this kind of communicator, kUnavailable where survivors were made too often. Then
  /// nothing has changed.
  [[nodiscard]] std::unique_ptr<Communicator> survivors(std::span<const int> members,
                                                        std::uint64_t generation);
  /// Whether survivors() may bring in another process in the place of a lost one.
  [[nodiscard]] virtual bool takes_newcomers() const noexcept { return false; }
  /// Whether this rank is such a process, and nobody has called survivors() since.
  [[nodiscard]] virtual bool comes_late() const noexcept { return false; }

 protected:
  /// All ranks take part. By the processes' clock.
  Communicator(int rank, int size);
  /// Only `members` take part. By the processes' clock.
  Communicator(int rank, int size, std::span<const int> members);
  Communicator(int rank, int size, std::span<const int> members, Clock& clock);
  /// All ranks take part.
  Communicator(int rank, int size, Clock& clock);

  /// When this is called, `call` is valid on this rank, the deadline has not passed, and the
  /// communicator is not poisoned.
  virtual Status do_collective(const Collective& call, Deadline deadline) = 0;
  virtual Status do_complete(Deadline /*deadline*/) { return {}; }
  /// Tells the peers, where that is possible, and ends the pending collectives.
  virtual void do_poison(const Status& reason) = 0;
  /// Returns the failure that a peer reported, or ok.
  virtual Status do_look_for_failure() { return {}; }
  /// Wakes the call that is under way, where it does not look() by itself. From any thread.
  virtual void do_interrupt(const Status& /*reason*/) {}
  /// Returns the failure that a peer or interrupt() reported, or ok: for calls that wait.
  [[nodiscard]] Status look();
  /// `members` are valid. This communicator is poisoned afterwards.
  virtual std::unique_ptr<Communicator> do_survivors(std::span<const int> members,
                                                     std::uint64_t generation) = 0;

 private:
  Status finish(Status status);

  int rank_;
  int size_;
  std::vector<int> members_;
  Clock& clock_;
  Traffic traffic_;
  Status poison_;
  std::atomic<bool> interrupted_ = false;
  std::mutex mutex_;     // guards what follows
  Status interruption_;  // set once
};

}  // namespace tributary
