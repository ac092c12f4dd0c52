// What the pool needs from a group of processes: three collectives with deadlines. Implementations:
// comm/local (self, threads), comm/mpi, later comm/nccl.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary {

/// Payload bytes that this rank sent to other ranks (its own share is a copy and not counted).
struct Traffic {
  std::uint64_t broadcast_bytes = 0;
  std::uint64_t all_gather_bytes = 0;
  std::uint64_t all_to_all_bytes = 0;
};

/// A fixed group of ranks. Every rank calls the same collectives in the same order with matching
/// counts; one call is under way at a time; calls come from one thread per rank.
///
/// Buffers belong to the caller and stay valid and untouched until the call returns.
/// All blocks lie in rank order without gaps. A count may be 0 for any rank.
///
/// Failure: a missed deadline, a lost peer or bad arguments poison the communicator for good; that
/// call and every later one return the status of the first failure, and nothing more is sent.
///
///   right: every rank calls all_gather, a failed one with an error in its payload;
///   wrong: a failed rank returns early, and its peers pair this call with its next one.
class Communicator {
 public:
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// `self`, `threads`, `mpi`, ...
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

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

  /// Ends the communicator: this and every later call here fails with `reason`; peers fail too,
  /// at once where the implementation can tell them, else at their deadlines. An ok reason is none.
  void poison(const Status& reason);
  [[nodiscard]] bool poisoned() const noexcept { return !poison_.ok(); }
  /// Looks whether a peer has failed, without a call to the peers: for a rank that waits for them
  /// by other ways. Not ok: the communicator is poisoned.
  Status look_for_failure();

  [[nodiscard]] const Traffic& traffic() const noexcept { return traffic_; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

  // Arguments are validated, and the communicator is not poisoned, when these are called.
  virtual Status do_broadcast(std::span<std::byte> data, int root, Deadline deadline) = 0;
  virtual Status do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                               std::span<const std::size_t> counts, Deadline deadline) = 0;
  virtual Status do_all_to_all(std::span<const std::byte> send,
                               std::span<const std::size_t> send_counts, std::span<std::byte> recv,
                               std::span<const std::size_t> recv_counts, Deadline deadline) = 0;
  /// Tells the peers, where that is possible.
  virtual void do_poison(const Status& reason) = 0;
  /// What a peer told, or ok.
  virtual Status do_look_for_failure() { return {}; }

 private:
  Status finish(Status status);

  int rank_;
  int size_;
  Traffic traffic_;
  Status poison_;
};

}  // namespace tributary
