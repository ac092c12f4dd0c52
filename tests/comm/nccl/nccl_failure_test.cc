// NcclCommunicator over the emulated NCCL: when received data is there, and that any failure, on
// one rank or between ranks, ends all ranks with its reason, long before their deadlines if NCCL
// can tell.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/local/run_ranks.h"
#include "comm/nccl/nccl_communicator.h"
#include "core/base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/comm/nccl/emulated_ranks.h"
#include "tests/core/base/expect_error.h"

namespace tributary::test {
namespace {

using namespace std::chrono_literals;
using NcclFailure = EmulatedDevices;

constexpr std::size_t kBlock = 1000;
/// Beyond any test's time limit: no test waits that long.
Deadline ample() {
  return Deadline::after(10min);
}

std::vector<std::byte> bytes_of(int value, std::size_t size) {
  return std::vector<std::byte>(size, std::byte(value));
}

/// A rank with a device of its own: a block to send and room for everybody's.
struct Rank {
  Rank(Communicator& host, bool on_stream)
      : bootstrap(host),
        backend(make_cuda_backend({.device = host.rank()})),
        owned(make_nccl_communicator(host, host.rank(), ample(),
                                     on_stream ? cuda_stream(*backend) : nullptr)),
        exchange(*owned),
        counts(static_cast<std::size_t>(host.size()), kBlock),
        send(backend->allocate(kBlock * counts.size())),
        recv(backend->allocate(kBlock * counts.size())) {
    backend->upload(send->data(), bytes_of(10 + host.rank(), kBlock * counts.size()));
    backend->upload(recv->data(), bytes_of(1, kBlock * counts.size()));
    backend->synchronize(ample());
  }

  Status all_gather(Deadline deadline = ample()) {
    return exchange.all_gather({send->data(), kBlock}, {recv->data(), kBlock * counts.size()},
                               counts, deadline);
  }
  Status all_to_all() {
    const std::size_t all = kBlock * counts.size();
    return exchange.all_to_all({send->data(), all}, counts, {recv->data(), all}, counts, ample());
  }
  Status broadcast() { return exchange.broadcast({send->data(), kBlock}, 0, ample()); }

  /// The first byte of the block of `rank`, read without waiting for anything.
  [[nodiscard]] int received(int rank) const {
    return static_cast<int>(recv->data()[static_cast<std::size_t>(rank) * kBlock]);
  }

  Communicator& bootstrap;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> owned;
  Communicator& exchange;
  std::vector<std::size_t> counts;
  std::unique_ptr<Buffer> send, recv;
};

void run(int ranks, bool on_stream, const std::function<void(Rank&)>& body) {
  run_ranks(ranks, [&](Communicator& bootstrap) {
    Rank rank(bootstrap, on_stream);
    // A rank that failed at once would end the start of ranks that are not ready yet.
    bootstrap.broadcast({}, 0, ample()).throw_if_error();
    body(rank);
  });
}

/// Expects the same status on all ranks, with these words in it.
class Verdict {
 public:
  explicit Verdict(std::size_t ranks) : statuses_(ranks) {}
  void set(int rank, Status status) {
    statuses_[static_cast<std::size_t>(rank)] = std::move(status);
  }
  void expect(ErrorCode code, std::string_view words) const {
    for (const Status& status : statuses_) {
      EXPECT_EQ(status.code(), code) << status.message();
      EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
      EXPECT_EQ(status.message(), statuses_.front().message());
    }
  }

 private:
  std::vector<Status> statuses_;
};

TEST_F(NcclFailure, OnTheBackendsStreamNothingIsReceivedBeforeItIsComplete) {
  run(2, true, [](Rank& rank) {
    const int peer = 1 - rank.exchange.rank();
    // Nothing waits in between: the device fills the block after the call was made, and reads the
    // received one later on the stream.
    int seen = 0;
    ASSERT_EQ(enqueue_on(cuda_stream(*rank.backend),
                         [&] { std::memset(rank.send->data(), 20 + 1 - peer, kBlock); }),
              cudaSuccess);
    ASSERT_TRUE(rank.all_gather().ok());
    ASSERT_EQ(enqueue_on(cuda_stream(*rank.backend), [&] { seen = rank.received(peer); }),
              cudaSuccess);
    EXPECT_EQ(rank.received(peer), 1) << "not received yet";
    EXPECT_EQ(seen, 0);
    ASSERT_TRUE(rank.exchange.complete(ample()).ok());
    EXPECT_EQ(rank.received(peer), 20 + peer);
    EXPECT_EQ(seen, 20 + peer);
  });
}

struct PlantedFailure {
  std::string function;
  int n = 1;
  std::function<Status(Rank&)> call;
};

TEST_F(NcclFailure, ACallThatFailsOnOneRankEndsAll) {
  const auto gather = [](Rank& rank) { return rank.all_gather(); };
  const auto scatter = [](Rank& rank) { return rank.all_to_all(); };
  const std::vector<PlantedFailure> failures{
      {"ncclAllGather", 1, gather},
      {"ncclAllGather", 2, gather},
      {"ncclBroadcast", 2, [](Rank& rank) { return rank.broadcast(); }},
      {"ncclSend", 1, scatter},
      {"ncclSend", 4, scatter},
      {"ncclRecv", 2, scatter},
      {"ncclCommGetAsyncError", 1, scatter},
      {"ncclCommGetAsyncError", 3, scatter}};
  for (const bool on_stream : {true, false}) {
    for (const PlantedFailure& failure : failures) {
      SCOPED_TRACE(fmt::format("{} {}, on_stream {}", failure.function, failure.n, on_stream));
      Verdict verdict(3);
      run(3, on_stream, [&](Rank& rank) {
        if (rank.exchange.rank() == 1) {
          fail_nccl_call(failure.function, 1, failure.n, ncclSystemError);
        }
        Status status;
        for (int i = 0; i < 20 && status.ok(); ++i) {
          status = failure.call(rank);
          if (status.ok()) status = rank.exchange.complete(ample());
        }
        verdict.set(rank.exchange.rank(), status);
        EXPECT_TRUE(rank.exchange.poisoned());
        EXPECT_EQ(rank.all_gather().message(), status.message()) << "for good";
        EXPECT_EQ(nccl().group_end(), ncclInvalidUsage) << "no group of the thread is left open";
      });
      EXPECT_FALSE(nccl_failure_is_due(failure.function, 1));
      verdict.expect(ErrorCode::kWorkerFailed, "unhandled system error: planted");
    }
  }
}

TEST_F(NcclFailure, AnAsynchronousErrorEndsTheWaitForTheStreamOnAllRanks) {
  Verdict verdict(2);
  run(2, true, [&](Rank& rank) {
    if (rank.exchange.rank() == 0) {
      // Happens when the stream reaches it: after the call, which only enqueues.
      ASSERT_EQ(
          enqueue_on(cuda_stream(*rank.backend), [] { fail_communicators(0, ncclRemoteError); }),
          cudaSuccess);
    }
    ASSERT_TRUE(rank.all_gather().ok());
    ASSERT_TRUE(rank.bootstrap.broadcast({}, 0, ample()).ok());  // both are in it
    Status status = rank.exchange.complete(ample());
    if (rank.exchange.rank() == 0) {
      EXPECT_EQ(status.code(), ErrorCode::kWorkerFailed) << status.message();
    }
    // The peer's part may be complete: then its next call fails.
    if (status.ok()) status = rank.all_gather();
    if (status.ok()) status = rank.exchange.complete(ample());
    verdict.set(rank.exchange.rank(), status);
  });
  verdict.expect(ErrorCode::kWorkerFailed, "remote process exited or there was a network error");
}

TEST_F(NcclFailure, ACudaErrorEndsAll) {
  Verdict verdict(2);
  run(2, true, [&](Rank& rank) {
    ASSERT_TRUE(rank.all_gather().ok());
    // Both ranks wait here: the failure is set for the process, and the other rank must not meet
    // it.
    ASSERT_TRUE(rank.bootstrap.broadcast({}, 0, ample()).ok());
    Status status;
    if (rank.exchange.rank() == 0) {
      fail_call("cudaStreamQuery", 1, cudaErrorLaunchFailure);
      status = rank.exchange.complete(ample());
    } else {
      while (status.ok()) {
        std::this_thread::yield();
        status = rank.exchange.look_for_failure();
      }
    }
    verdict.set(rank.exchange.rank(), status);
  });
  verdict.expect(ErrorCode::kWorkerFailed, "CUDA says unspecified launch failure");
}

TEST_F(NcclFailure, PoisonFreesTheStreamFromACollectiveWithoutItsPeer) {
  Verdict verdict(2);
  run(2, true, [&](Rank& rank) {
    const Status reason{ErrorCode::kPoolFull, "page 812 is gone"};
    ASSERT_TRUE(rank.all_gather().ok());
    ASSERT_TRUE(rank.bootstrap.broadcast({}, 0, ample()).ok());  // both are in it
    bool reached = false;
    ASSERT_EQ(enqueue_on(cuda_stream(*rank.backend), [&] { reached = true; }), cudaSuccess);
    if (rank.exchange.rank() == 0) {
      verdict.set(0, rank.exchange.complete(ample()));
    } else {
      rank.exchange.poison(reason);  // its own stream has not reached the collective
      verdict.set(1, rank.exchange.complete(ample()));
    }
    // As the interface requires: later work on the stream runs, and then buffers may be freed.
    rank.backend->synchronize(ample());
    EXPECT_TRUE(reached);
    EXPECT_EQ(rank.received(1 - rank.exchange.rank()), 1) << "nothing was sent";
  });
  verdict.expect(ErrorCode::kPoolFull, "page 812 is gone");
}

TEST_F(NcclFailure, BuffersMayGoAfterAFailureWhileTheStreamStillHoldsTheCollective) {
  run(2, true, [](Rank& rank) {
    ASSERT_TRUE(rank.all_gather().ok());
    ASSERT_TRUE(rank.exchange.complete(ample()).ok());
    if (rank.exchange.rank() == 1) {
      while (rank.exchange.look_for_failure().ok()) std::this_thread::yield();
      return;
    }
    ASSERT_TRUE(rank.all_gather().ok());
    EXPECT_EQ(pending_work(cuda_stream(*rank.backend)), 1U);
    EXPECT_EQ(rank.exchange.complete(Deadline::after(50ms)).code(), ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(pending_work(cuda_stream(*rank.backend)), 1U);
    rank.recv = nullptr;
    rank.send = nullptr;
    rank.backend->synchronize(ample());
  });
}

TEST_F(NcclFailure, AnEnginesCaptureInGlobalModeOutlivesTheWait) {
  for (const bool on_stream : {true, false}) {
    run(2, on_stream, [](Rank& rank) {
      cudaStream_t engine = nullptr;
      ASSERT_EQ(cudaStreamCreateWithFlags(&engine, cudaStreamNonBlocking), cudaSuccess);
      ASSERT_EQ(cudaStreamBeginCapture(engine, cudaStreamCaptureModeGlobal), cudaSuccess);
      Status status = rank.all_gather();
      if (status.ok()) status = rank.exchange.complete(ample());
      EXPECT_TRUE(status.ok()) << status.message();
      cudaStreamCaptureStatus capture = cudaStreamCaptureStatusInvalidated;
      EXPECT_EQ(cudaStreamIsCapturing(engine, &capture), cudaSuccess);
      EXPECT_EQ(capture, cudaStreamCaptureStatusActive);
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(cudaStreamEndCapture(engine, &graph), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(engine), cudaSuccess);
    });
  }
}

TEST_F(NcclFailure, SizesThatDifferEndBothAtTheirDeadline) {
  for (const bool on_stream : {true, false}) {
    run(2, on_stream, [](Rank& rank) {
      const std::size_t block = kBlock - static_cast<std::size_t>(rank.exchange.rank());
      const std::vector<std::size_t> counts(2, block);
      const Deadline deadline = Deadline::after(100ms);
      Status status = rank.exchange.all_gather({rank.send->data(), block},
                                               {rank.recv->data(), 2 * block}, counts, deadline);
      if (status.ok()) status = rank.exchange.complete(deadline);
      EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded) << status.message();
    });
  }
}

TEST_F(NcclFailure, ARankThatNeverStartsIsMissedAtTheDeadline) {
  Status status;
  run_ranks(2, [&](Communicator& bootstrap) {
    if (bootstrap.rank() == 1) {
      // Takes the invitation, but does not join.
      std::array<std::byte, sizeof(ncclUniqueId) + 512> invitation{};
      (void)bootstrap.broadcast(invitation, 0, ample());
      return;
    }
    // Longer than the invitation takes.
    status = status_of([&] { (void)make_nccl_communicator(bootstrap, 0, Deadline::after(3s)); });
  });
  EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("nccl start: not complete"), std::string::npos);
}

TEST_F(NcclFailure, WithoutAnIdentityAllThrowTheSame) {
  fail_nccl_call("ncclGetUniqueId", 0, 1, ncclSystemError);
  Verdict verdict(3);
  run_ranks(3, [&](Communicator& bootstrap) {
    verdict.set(bootstrap.rank(), status_of([&] {
                  (void)make_nccl_communicator(bootstrap, bootstrap.rank(), ample());
                }));
  });
  verdict.expect(ErrorCode::kUnavailable, "nccl identity: unhandled system error");
}

TEST_F(NcclFailure, ABootstrapWithAbsentRanksIsRefused) {
  run_ranks(2, [](Communicator& whole) {
    if (whole.rank() == 0) return;
    const auto bootstrap = whole.survivors(std::vector<int>{1}, 1);
    const Status status = status_of([&] { (void)make_nccl_communicator(*bootstrap, 1, ample()); });
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(status.message(), "nccl: only ranks 1 of 2 take part, all are needed");
  });
}

TEST_F(NcclFailure, ARankWithoutItsDeviceTellsTheOthers) {
  Verdict verdict(2);
  run_ranks(2, [&](Communicator& bootstrap) {
    const int device = bootstrap.rank() == 0 ? 0 : 7;
    verdict.set(bootstrap.rank(),
                status_of([&] { (void)make_nccl_communicator(bootstrap, device, ample()); }));
  });
  verdict.expect(ErrorCode::kWorkerFailed, "nccl start: CUDA says invalid device ordinal");
}

TEST_F(NcclFailure, AStartThatFailsOnOneRankEndsTheOthersWhenTheirBootstrapDoes) {
  fail_nccl_call("ncclCommInitRankConfig", 1, 1, ncclSystemError);
  EXPECT_EQ(message_of([] {
              run_ranks(3, [](Communicator& bootstrap) {
                (void)make_nccl_communicator(bootstrap, bootstrap.rank(), ample());
              });
            }),
            "nccl start: unhandled system error");
}

}  // namespace
}  // namespace tributary::test
