// The interface that the pool needs from a group of ranks: three collectives with deadlines. An
// implementation executes a Collective; checks, deadlines, traffic and poison are handled here
// once. Implementations: comm/local (self, threads), comm/mpi, comm/nccl, comm/staged.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

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
  [[nodiscard]] int size() const noexcept { return size_; }
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

  [[nodiscard]] const Traffic& traffic() const noexcept { return traffic_; }

 protected:
  /// By the processes' clock.
  Communicator(int rank, int size);
  Communicator(int rank, int size, Clock& clock) : rank_(rank), size_(size), clock_(clock) {}

  /// When this is called, `call` is valid on this rank, the deadline has not passed, and the
  /// communicator is not poisoned.
  virtual Status do_collective(const Collective& call, Deadline deadline) = 0;
  virtual Status do_complete(Deadline /*deadline*/) { return {}; }
  /// Tells the peers, where that is possible, and ends the pending collectives.
  virtual void do_poison(const Status& reason) = 0;
  /// Returns the failure that a peer reported, or ok.
  virtual Status do_look_for_failure() { return {}; }

 private:
  Status finish(Status status);

  int rank_;
  int size_;
  Clock& clock_;
  Traffic traffic_;
  Status poison_;
};

}  // namespace tributary
