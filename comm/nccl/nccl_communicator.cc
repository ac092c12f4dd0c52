// Collectives as groups of NCCL's calls on one stream, and the waits for their end.
#include "comm/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "comm/nccl/nccl_table.h"

namespace tributary {
namespace {

using Clock = Deadline::Clock;

/// Exchanges of a decode step take tens to hundreds of microseconds, and waking from a sleep costs
/// some 60: a wait as short as that is spent yielding.
constexpr auto kYieldTime = std::chrono::milliseconds(2);
constexpr auto kSleep = std::chrono::microseconds(100);
/// For a communicator that has done its work to end in order; then it is aborted.
constexpr auto kFinalizeTimeout = std::chrono::seconds(10);

/// What rank 0 tells the others before NCCL starts.
struct Invitation {
  ncclUniqueId id{};
  std::array<char, 512> problem{};  // empty: there is none
};

Status cuda_status_of(std::string_view what, cudaError_t code) {
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();
  return {ErrorCode::kWorkerFailed,
          fmt::format("nccl {}: CUDA says {}", what, cudaGetErrorString(code))};
}

/// Polls until `ended` says so or fails. It returns true, false, or a failure.
template <typename Ended>
Status poll(std::string_view what, Deadline deadline, const Ended& ended) {
  const auto begin = Clock::now();
  for (;;) {
    bool done = false;
    Status status = ended(done);
    if (!status.ok() || done) return status;
    const auto now = Clock::now();
    if (now >= deadline.when()) {
      return {
          ErrorCode::kDeadlineExceeded,
          fmt::format("nccl {}: not complete at the deadline, after {} us", what,
                      std::chrono::duration_cast<std::chrono::microseconds>(now - begin).count())};
    }
    if (now - begin < kYieldTime) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>(kSleep, deadline.when() - now));
    }
  }
}

}  // namespace

class NcclCommunicator::Impl {
 public:
  Impl(Communicator& bootstrap, int device, const ncclUniqueId& id, Deadline deadline,
       cudaStream_t stream)
      : bootstrap_(bootstrap),
        rank_(bootstrap.rank()),
        size_(bootstrap.size()),
        device_(device),
        owns_stream_(stream == nullptr),
        stream_(stream) {
    Status status;
    const Status thrown = status_of([&] { status = start(id, deadline); });
    if (!thrown.ok()) status = thrown;
    if (status.ok()) return;
    bootstrap_.poison(status);  // the others need not wait for this rank
    end(/*in_order=*/false);
    status.throw_if_error();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { end(/*in_order=*/true); }

  [[nodiscard]] bool owns_stream() const noexcept { return owns_stream_; }
  void abort() { end(/*in_order=*/false); }

  /// The wait for NCCL and for the device, by way of all that lies on the stream.
  Status complete(std::string_view what, Deadline deadline) {
    Status status = cuda_status_of(what, cudaSetDevice(device_));
    if (!status.ok()) return status;
    return poll(what, deadline, [&](bool& done) -> Status {
      const cudaError_t code = cudaStreamQuery(stream_);
      done = code == cudaSuccess;
      if (code != cudaSuccess && code != cudaErrorNotReady) return cuda_status_of(what, code);
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = nccl().comm_get_async_error(comm_, &state);
      Status failure = started(what, asked == ncclSuccess ? state : asked);
      return failure.ok() && !done ? bootstrap_.look_for_failure() : failure;
    });
  }

  Status broadcast(std::span<std::byte> data, int root, Deadline deadline) {
    return run("broadcast", deadline, [&]() -> Status {
      if (data.empty()) return {};
      return started("broadcast", nccl().broadcast(data.data(), data.data(), data.size(), ncclUint8,
                                                   root, comm_, stream_));
    });
  }

  Status all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                    std::span<const std::size_t> counts, Deadline deadline) {
    const bool even = std::ranges::adjacent_find(counts, std::not_equal_to<>()) == counts.end();
    return run("all_gather", deadline, [&]() -> Status {
      if (recv.empty()) return {};
      if (even) {
        return started("all_gather", nccl().all_gather(send.data(), recv.data(), send.size(),
                                                       ncclUint8, comm_, stream_));
      }
      const auto no_offset = [&](int) { return send; };
      return exchange("all_gather", no_offset, recv, counts);
    });
  }

  Status all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                    std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                    Deadline deadline) {
    const auto self = static_cast<std::size_t>(rank_);
    if (send_counts[self] != recv_counts[self]) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("all_to_all: rank {} sends {} bytes to itself, which expects {}", rank_,
                          send_counts[self], recv_counts[self])};
    }
    std::vector<std::span<const std::byte>> blocks;
    for (const std::size_t count : send_counts) {
      blocks.push_back(send.first(count));
      send = send.subspan(count);
    }
    return run("all_to_all", deadline, [&] {
      return exchange(
          "all_to_all", [&](int peer) { return blocks[static_cast<std::size_t>(peer)]; }, recv,
          recv_counts);
    });
  }

 private:
  Status start(const ncclUniqueId& id, Deadline deadline) {
    Status status = cuda_status_of("start", cudaSetDevice(device_));
    if (status.ok() && owns_stream_) {
      status = cuda_status_of("start", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    if (!status.ok()) return status;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result = nccl().comm_init_rank_config(&comm_, size_, id, rank_, &config);
    status = started("start", result);
    return status.ok() ? settle("start", deadline) : status;
  }

  /// A call's own result; that it has begun is not an error.
  Status started(std::string_view what, ncclResult_t result) const {
    if (result == ncclSuccess || result == ncclInProgress) return {};
    const char* detail = comm_ != nullptr ? nccl().get_last_error(comm_) : nullptr;
    return {ErrorCode::kWorkerFailed,
            fmt::format("nccl {}: {}{}{}", what, nccl().get_error_string(result),
                        detail != nullptr && *detail != '\0' ? ": " : "",
                        detail != nullptr ? detail : "")};
  }

  /// Waits until NCCL has taken in what it was given: only then does it lie on the stream.
  Status settle(std::string_view what, Deadline deadline) {
    return poll(what, deadline, [&](bool& done) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = nccl().comm_get_async_error(comm_, &state);
      done = state != ncclInProgress;
      Status status = started(what, asked == ncclSuccess ? state : asked);
      return status.ok() && !done ? bootstrap_.look_for_failure() : status;
    });
  }

  /// One collective: `enqueue`, then the wait for NCCL, and on a stream of its own for the device.
  template <typename Enqueue>
  Status run(std::string_view what, Deadline deadline, const Enqueue& enqueue) {
    if (deadline.expired()) {
      return {ErrorCode::kDeadlineExceeded,
              fmt::format("{}: the deadline passed before it began", what)};
    }
    Status status = cuda_status_of(what, cudaSetDevice(device_));
    if (status.ok()) status = enqueue();
    if (status.ok()) status = settle(what, deadline);
    return status.ok() && owns_stream_ ? complete(what, deadline) : status;
  }

  /// Sends block_of(r) to every other rank r and receives theirs; the own one is a copy.
  template <typename BlockOf>
  Status exchange(std::string_view what, const BlockOf& block_of, std::span<std::byte> recv,
                  std::span<const std::size_t> counts) {
    Status status = started(what, nccl().group_start());
    for (int peer = 0; peer < size_ && status.ok(); ++peer) {
      const std::span<std::byte> to = recv.first(counts[static_cast<std::size_t>(peer)]);
      recv = recv.subspan(to.size());
      const std::span<const std::byte> from = block_of(peer);
      if (peer == rank_) {
        if (!to.empty()) {
          status = cuda_status_of(
              what, cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDefault, stream_));
        }
        continue;
      }
      if (!from.empty()) {
        status =
            started(what, nccl().send(from.data(), from.size(), ncclUint8, peer, comm_, stream_));
      }
      if (status.ok() && !to.empty()) {
        status = started(what, nccl().recv(to.data(), to.size(), ncclUint8, peer, comm_, stream_));
      }
    }
    // Ended also after a failure: NCCL counts the groups of a thread.
    const Status ended = started(what, nccl().group_end());
    return status.ok() ? ended : status;
  }

  void end(bool in_order) {
    (void)cudaSetDevice(device_);
    if (comm_ != nullptr) {
      Status status;
      if (in_order) {
        status = started("end", nccl().comm_finalize(comm_));
        if (status.ok()) status = settle("end", Deadline::after(kFinalizeTimeout));
      }
      if (in_order && status.ok()) {
        (void)nccl().comm_destroy(comm_);
      } else {
        (void)nccl().comm_abort(comm_);
      }
      comm_ = nullptr;
    }
    if (owns_stream_ && stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    stream_ = nullptr;
  }

  Communicator& bootstrap_;
  int rank_;
  int size_;
  int device_;
  const bool owns_stream_;
  cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
};

namespace {

/// Rank 0 makes the identity of the group and all learn it, or why there is none.
ncclUniqueId invite(Communicator& bootstrap, Deadline deadline) {
  Invitation invitation;
  if (bootstrap.rank() == 0) {
    const Status status = status_of([&] {
      const ncclResult_t result = nccl().get_unique_id(&invitation.id);
      if (result != ncclSuccess) {
        fail(ErrorCode::kWorkerFailed, "nccl identity: {}", nccl().get_error_string(result));
      }
    });
    std::copy_n(status.message().begin(),
                std::min(status.message().size(), invitation.problem.size() - 1),
                invitation.problem.begin());
  }
  bootstrap.broadcast(std::as_writable_bytes(std::span(&invitation, 1)), 0, deadline)
      .throw_if_error();
  if (invitation.problem[0] != '\0') {
    fail(ErrorCode::kUnavailable, "{}", invitation.problem.data());
  }
  return invitation.id;
}

}  // namespace

NcclCommunicator::NcclCommunicator(Communicator& bootstrap, int device, Deadline deadline,
                                   CUstream_st* stream)
    : Communicator(bootstrap.rank(), bootstrap.size()),
      bootstrap_(bootstrap),
      impl_(std::make_unique<Impl>(bootstrap, device, invite(bootstrap, deadline), deadline,
                                   stream)) {}

NcclCommunicator::~NcclCommunicator() = default;

bool NcclCommunicator::on_stream() const noexcept {
  return !impl_->owns_stream();
}

Status NcclCommunicator::do_broadcast(std::span<std::byte> data, int root, Deadline deadline) {
  return impl_->broadcast(data, root, deadline);
}

Status NcclCommunicator::do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                                       std::span<const std::size_t> counts, Deadline deadline) {
  return impl_->all_gather(send, recv, counts, deadline);
}

Status NcclCommunicator::do_all_to_all(std::span<const std::byte> send,
                                       std::span<const std::size_t> send_counts,
                                       std::span<std::byte> recv,
                                       std::span<const std::size_t> recv_counts,
                                       Deadline deadline) {
  return impl_->all_to_all(send, send_counts, recv, recv_counts, deadline);
}

Status NcclCommunicator::do_complete(Deadline deadline) {
  return on_stream() ? impl_->complete("wait for the stream", deadline) : Status();
}

void NcclCommunicator::do_poison(const Status& reason) {
  impl_->abort();
  bootstrap_.poison(reason);
}

}  // namespace tributary
