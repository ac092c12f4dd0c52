// Collectives as NCCL calls on one stream, and the waits for their completion.
#include "comm/nccl/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/nccl/nccl_table.h"
#include "core/base/awake_wait.h"

namespace tributary {
namespace {

using Clock = std::chrono::steady_clock;

/// The exchanges of a decode step take tens to hundreds of microseconds, and waking from a sleep
/// costs about 60: such short waits are spent yielding.
constexpr auto kYieldTime = std::chrono::milliseconds(2);
constexpr auto kSleep = std::chrono::microseconds(100);
/// For the orderly end of a communicator; after that it is aborted.
constexpr auto kFinalizeTimeout = std::chrono::seconds(10);

/// The message of rank 0 to the others before NCCL starts.
struct Invitation {
  ncclUniqueId id{};
  std::array<char, 512> problem{};  // empty: no problem
};

Status cuda_status_of(std::string_view what, cudaError_t code) {
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();
  return {ErrorCode::kWorkerFailed,
          fmt::format("nccl {}: CUDA says {}", what, cudaGetErrorString(code))};
}

/// Whether the stream is done, asked so that an engine's capture in global mode, which is PyTorch's
/// default, stays valid.
cudaError_t query(cudaStream_t stream) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  const bool exchanged = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
  const cudaError_t code = cudaStreamQuery(stream);
  if (exchanged) (void)cudaThreadExchangeStreamCaptureMode(&mode);
  return code;
}

/// Polls until ended(done) sets `done` or returns a failure.
template <typename Ended>
Status poll(std::string_view what, Deadline deadline, const Ended& ended) {
  const auto begin = Clock::now();
  AwakeWait patience(deadline, begin);
  for (;;) {
    bool done = false;
    Status status = ended(done);
    if (!status.ok() || done) return status;
    const auto now = Clock::now();
    if (patience.over(now)) {
      return {
          ErrorCode::kDeadlineExceeded,
          fmt::format("nccl {}: not complete at the deadline, after {} us", what,
                      std::chrono::duration_cast<std::chrono::microseconds>(now - begin).count())};
    }
    if (now - begin < kYieldTime) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>(kSleep, patience.next_look(now) - now));
    }
  }
}

class NcclCommunicator final : public Communicator {
 public:
  /// Does not start, so that the destructor cleans up after a start() that failed.
  NcclCommunicator(Communicator& bootstrap, int device, cudaStream_t stream)
      : Communicator(bootstrap.rank(), bootstrap.size()),
        bootstrap_(bootstrap),
        device_(device),
        owns_stream_(stream == nullptr),
        stream_(stream) {}
  ~NcclCommunicator() override { end(/*in_order=*/true); }
  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }
  [[nodiscard]] bool on_stream() const noexcept override { return !owns_stream_; }

  /// Joins the group of `id`. A failure poisons the bootstrap, so that the others do not wait for
  /// this rank.
  void start(const ncclUniqueId& id, Deadline deadline) {
    const Status status = status_of([&] { join(id, deadline).throw_if_error(); });
    poison(status);
    status.throw_if_error();
  }

 protected:
  /// Waits until NCCL has accepted the call; with a stream of its own also for the device.
  Status do_collective(const Collective& call, Deadline deadline) override {
    const std::string_view what = collective_name(call.kind);
    Status status = cuda_status_of(what, cudaSetDevice(device_));
    if (status.ok()) status = enqueue(call);
    if (status.ok()) status = settle(what, deadline);
    return status.ok() && owns_stream_ ? complete_stream(what, deadline) : status;
  }
  Status do_complete(Deadline deadline) override {
    return on_stream() ? complete_stream("wait for the stream", deadline) : Status();
  }
  void do_poison(const Status& reason) override {
    end(/*in_order=*/false);
    bootstrap_.poison(reason);
  }
  Status do_look_for_failure() override { return bootstrap_.look_for_failure(); }
  std::unique_ptr<Communicator> do_survivors(std::span<const int> /*members*/,
                                             std::uint64_t /*generation*/) override {
    fail(ErrorCode::kUnsupported, "nccl: a GPU pool ends with a lost worker");
  }

 private:
  Status join(const ncclUniqueId& id, Deadline deadline) {
    Status status = cuda_status_of("start", cudaSetDevice(device_));
    if (status.ok() && owns_stream_) {
      status = cuda_status_of("start", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    if (!status.ok()) return status;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result = nccl().comm_init_rank_config(&comm_, size(), id, rank(), &config);
    status = started("start", result);
    return status.ok() ? settle("start", deadline) : status;
  }

  /// Converts the result of a call. ncclInProgress is not an error.
  Status started(std::string_view what, ncclResult_t result) const {
    if (result == ncclSuccess || result == ncclInProgress) return {};
    const char* detail = comm_ != nullptr ? nccl().get_last_error(comm_) : nullptr;
    return {ErrorCode::kWorkerFailed,
            fmt::format("nccl {}: {}{}{}", what, nccl().get_error_string(result),
                        detail != nullptr && *detail != '\0' ? ": " : "",
                        detail != nullptr ? detail : "")};
  }

  /// Waits until NCCL has accepted its calls: only then are they on the stream.
  Status settle(std::string_view what, Deadline deadline) {
    return poll(what, deadline, [&](bool& done) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = nccl().comm_get_async_error(comm_, &state);
      done = state != ncclInProgress;
      Status status = started(what, asked == ncclSuccess ? state : asked);
      return status.ok() && !done ? bootstrap_.look_for_failure() : status;
    });
  }

  /// Waits for everything on the stream, and so for NCCL and the device.
  Status complete_stream(std::string_view what, Deadline deadline) {
    Status status = cuda_status_of(what, cudaSetDevice(device_));
    if (!status.ok()) return status;
    return poll(what, deadline, [&](bool& done) -> Status {
      const cudaError_t code = query(stream_);
      done = code == cudaSuccess;
      if (code != cudaSuccess && code != cudaErrorNotReady) return cuda_status_of(what, code);
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = nccl().comm_get_async_error(comm_, &state);
      Status failure = started(what, asked == ncclSuccess ? state : asked);
      return failure.ok() && !done ? bootstrap_.look_for_failure() : failure;
    });
  }

  Status enqueue(const Collective& call) {
    const std::string_view what = collective_name(call.kind);
    if (call.kind == CollectiveKind::kBroadcast) {
      // In place on the root: NCCL only reads that memory there.
      std::byte* data =
          rank() == call.root ? const_cast<std::byte*>(call.send.data()) : call.recv.data();
      const std::size_t bytes = call.send.size() + call.recv.size();
      if (bytes == 0) return {};
      return started(what,
                     nccl().broadcast(data, data, bytes, ncclUint8, call.root, comm_, stream_));
    }
    if (call.kind == CollectiveKind::kAllGather && call.recv.empty()) return {};
    const bool even = std::ranges::adjacent_find(call.recv_counts, std::not_equal_to<>()) ==
                      call.recv_counts.end();
    if (call.kind == CollectiveKind::kAllGather && even) {
      return started(what, nccl().all_gather(call.send.data(), call.recv.data(), call.send.size(),
                                             ncclUint8, comm_, stream_));
    }
    return exchange(what, call);
  }

  /// Sends and receives a block for every other rank, in one group; the own block is copied.
  Status exchange(std::string_view what, const Collective& call) {
    Status status = started(what, nccl().group_start());
    for (int peer = 0; peer < size() && status.ok(); ++peer) {
      const std::span<const std::byte> from = call.block_to(peer);
      const std::span<std::byte> to = call.block_from(peer);
      if (peer == rank()) {
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
    // Ended after a failure as well: NCCL counts the open groups of a thread.
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
  int device_;
  const bool owns_stream_;
  cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
};

/// Rank 0 makes the id of the group and sends it to all, or the reason why it could not.
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

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& bootstrap, int device,
                                                     Deadline deadline, CUstream_st* stream) {
  if (bootstrap.members().size() != static_cast<std::size_t>(bootstrap.size())) {
    fail(ErrorCode::kUnsupported, "nccl: only ranks {} of {} take part, all are needed",
         fmt::join(bootstrap.members(), ", "), bootstrap.size());
  }
  const ncclUniqueId id = invite(bootstrap, deadline);
  auto made = std::make_unique<NcclCommunicator>(bootstrap, device, stream);
  made->start(id, deadline);
  return made;
}

}  // namespace tributary
