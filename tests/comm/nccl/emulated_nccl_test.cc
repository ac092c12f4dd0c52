// The emulated NCCL itself: when communicators are ready, when bytes move, and what it refuses.
#include <array>
#include <vector>

#include "kernels/cuda/cuda_devices.h"
#include "tests/comm/nccl/emulated_ranks.h"

namespace tributary::test {
namespace {

using EmulatedNccl = EmulatedRanks;

constexpr std::size_t kBytes = 100;
constexpr std::byte kSent{7};
constexpr std::byte kOld{1};

TEST_F(EmulatedNccl, DevicesDifferInTheirNumberAndIdentity) {
  const CudaStatus status = cuda_status();
  ASSERT_EQ(status.devices.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(status.devices[i].ordinal, static_cast<int>(i));
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(status.devices[i].uuid, status.devices[j].uuid);
  }
  EXPECT_EQ(cudaSetDevice(4), cudaErrorInvalidDevice);
  (void)cudaGetLastError();
}

TEST_F(EmulatedNccl, ACommunicatorIsReadyWhenAllRanksCame) {
  ncclUniqueId id;
  ASSERT_EQ(nccl().get_unique_id(&id), ncclSuccess);
  EXPECT_EQ(join(id, 2, 0, 0), ncclInProgress);
  EXPECT_EQ(state_at_last(0), ncclInProgress);
  EXPECT_EQ(join(id, 2, 1, 1), ncclInProgress);
  EXPECT_EQ(state(1), ncclInProgress) << "at once";
  settle();
  end_in_order();
}

TEST_F(EmulatedNccl, TwoRanksOnOneDeviceAreRefusedOnBoth) {
  ncclUniqueId id;
  ASSERT_EQ(nccl().get_unique_id(&id), ncclSuccess);
  EXPECT_EQ(join(id, 2, 0, 3), ncclInProgress);
  EXPECT_EQ(join(id, 2, 1, 3), ncclInProgress);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(state_at_last(rank), ncclInvalidUsage);
    EXPECT_STREQ(nccl().get_last_error(at(rank).comm), "ranks 0 and 1 are on one device, 3");
  }
}

TEST_F(EmulatedNccl, BytesMoveWhenBothStreamsHaveComeToThem) {
  start(2);
  std::byte* const from = memory(0, kBytes, 0);
  std::byte* const to = memory(1, kBytes, static_cast<int>(kOld));
  ASSERT_EQ(send(0, from, kBytes, 1), ncclInProgress);
  ASSERT_EQ(recv(1, to, kBytes, 0), ncclInProgress);
  settle();
  std::memset(from, static_cast<int>(kSent), kBytes);  // after the call: read when executed
  EXPECT_EQ(query(1), cudaErrorNotReady) << "the sender's stream has not reached it";
  EXPECT_EQ(to[0], kOld);
  EXPECT_EQ(query(0), cudaSuccess);
  EXPECT_EQ(query(1), cudaSuccess);
  EXPECT_EQ(to[0], kSent);
  EXPECT_EQ(to[kBytes - 1], kSent);
  end_in_order();
}

TEST_F(EmulatedNccl, WhatLiesBeforeATransferOnTheStreamComesFirstAndBehindItLater) {
  start(2);
  std::byte* const from = memory(0, kBytes, 0);
  std::byte* const to = memory(1, kBytes, 0);
  std::byte seen{};
  use(0);
  ASSERT_EQ(enqueue_on(at(0).stream, [&] { from[0] = kSent; }), cudaSuccess);
  ASSERT_EQ(send(0, from, kBytes, 1), ncclInProgress);
  ASSERT_EQ(recv(1, to, kBytes, 0), ncclInProgress);
  settle();
  use(1);
  ASSERT_EQ(enqueue_on(at(1).stream, [&] { seen = to[0]; }), cudaSuccess);
  EXPECT_EQ(query(1), cudaErrorNotReady);
  EXPECT_EQ(query(0), cudaSuccess);
  EXPECT_EQ(query(1), cudaSuccess);
  EXPECT_EQ(seen, kSent);
  end_in_order();
}

// Work that is enqueued before the communicator reports success may run before the group, so
// callers have to poll.
TEST_F(EmulatedNccl, AGroupLiesOnTheStreamOnlyWhenTheCommunicatorSaysSo) {
  start(2);
  std::byte* const from = memory(0, kBytes, static_cast<int>(kSent));
  std::byte* const to = memory(1, kBytes, static_cast<int>(kOld));
  ASSERT_EQ(send(0, from, kBytes, 1), ncclInProgress);
  EXPECT_EQ(pending_work(at(0).stream), 0U);
  EXPECT_EQ(state_at_last(0), ncclInProgress) << "a first connection needs the peer";
  ASSERT_EQ(recv(1, to, kBytes, 0), ncclInProgress);
  settle();
  EXPECT_EQ(pending_work(at(0).stream), 1U);
  ASSERT_EQ(send(0, from, kBytes, 1), ncclInProgress);
  EXPECT_EQ(state(0), ncclSuccess) << "then it does not";
  ASSERT_EQ(recv(1, to, kBytes, 0), ncclInProgress);
  EXPECT_EQ(send(1, to, kBytes, 0), ncclInvalidArgument) << "in progress";
  EXPECT_EQ(nccl_misuse(), "a call while the one before was in progress");
  clear_nccl_misuse();
}

TEST_F(EmulatedNccl, SizesThatDifferNeverEndButByAnAbort) {
  start(2);
  std::byte* const from = memory(0, kBytes, static_cast<int>(kSent));
  std::byte* const to = memory(1, kBytes, static_cast<int>(kOld));
  ASSERT_EQ(send(0, from, kBytes, 1), ncclInProgress);
  ASSERT_EQ(recv(1, to, kBytes - 1, 0), ncclInProgress);
  settle();
  const std::uint64_t aborted = nccl_counters().aborted;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(query(0), cudaErrorNotReady);
    EXPECT_EQ(query(1), cudaErrorNotReady);
  }
  ASSERT_EQ(nccl().comm_abort(at(1).comm), ncclSuccess);
  at(1).comm = nullptr;
  EXPECT_EQ(query(1), cudaSuccess);
  EXPECT_EQ(to[0], kOld) << "without data";
  EXPECT_EQ(query(0), cudaErrorNotReady) << "the other one must abort too";
  ASSERT_EQ(nccl().comm_abort(at(0).comm), ncclSuccess);
  at(0).comm = nullptr;
  free_memory(from);  // the rest of the stream's work does not touch it
  EXPECT_EQ(query(0), cudaSuccess);
  EXPECT_EQ(nccl_counters().aborted, aborted + 2);
}

TEST_F(EmulatedNccl, MemoryThatIsNotTheDevicesIsAFault) {
  std::array<std::byte, kBytes> pageable{};
  for (const bool freed : {true, false}) {
    start(2);
    std::byte* const from = memory(freed ? 0 : 1, kBytes, 0);
    std::byte* const to = memory(1, kBytes, 0);
    ASSERT_EQ(send(0, freed ? pageable.data() : from, kBytes, 1), ncclInProgress);
    ASSERT_EQ(recv(1, to, kBytes, 0), ncclInProgress);
    settle();
    EXPECT_EQ(query(1), cudaErrorNotReady);
    EXPECT_EQ(query(0), cudaErrorIllegalAddress);
    EXPECT_NE(device_fault().find("what is sent of rank 0 (100 bytes) is not memory of"),
              std::string::npos)
        << device_fault();
    EXPECT_EQ(state(1), ncclSuccess);
    clear_device_fault();
    for (Rank& rank : ranks) {
      ASSERT_EQ(nccl().comm_abort(rank.comm), ncclSuccess);
      ASSERT_EQ(cudaStreamDestroy(rank.stream), cudaSuccess);
    }
    ranks.clear();
  }
}

TEST_F(EmulatedNccl, PageLockedMemoryIsAsGoodAsTheDevices) {
  start(2);
  std::byte* const from = memory(0, kBytes, static_cast<int>(kSent));
  void* to = nullptr;
  ASSERT_EQ(cudaMallocHost(&to, kBytes), cudaSuccess);
  ASSERT_EQ(send(0, from, kBytes, 1), ncclInProgress);
  ASSERT_EQ(recv(1, static_cast<std::byte*>(to), kBytes, 0), ncclInProgress);
  settle();
  (void)query(0);
  EXPECT_EQ(query(1), cudaSuccess);
  EXPECT_EQ(static_cast<std::byte*>(to)[kBytes - 1], kSent);
  EXPECT_EQ(cudaFreeHost(to), cudaSuccess);
  EXPECT_EQ(query(0), cudaSuccess);
  end_in_order();
}

TEST_F(EmulatedNccl, AGroupWithACallThatFailedDoesNothing) {
  start(2);
  std::byte* const data = memory(0, kBytes, 0);
  EXPECT_EQ(nccl().group_end(), ncclInvalidUsage) << "none was begun";
  ASSERT_EQ(nccl().group_start(), ncclSuccess);
  EXPECT_EQ(nccl().group_end(), ncclSuccess) << "an empty one";
  ASSERT_EQ(nccl().group_start(), ncclSuccess);
  EXPECT_EQ(send(0, data, kBytes, 1), ncclSuccess);
  EXPECT_EQ(send(0, data, kBytes, 2), ncclInvalidArgument);
  EXPECT_EQ(nccl().group_end(), ncclInvalidArgument);
  EXPECT_EQ(state(0), ncclSuccess);
  EXPECT_EQ(pending_work(at(0).stream), 0U);
  fail_nccl_call("ncclSend", 0, 2, ncclSystemError);
  ASSERT_EQ(nccl().group_start(), ncclSuccess);
  EXPECT_EQ(send(0, data, kBytes, 1), ncclSuccess);
  EXPECT_TRUE(nccl_failure_is_due("ncclSend", 0));
  EXPECT_EQ(send(0, data, kBytes, 1), ncclSystemError);
  EXPECT_FALSE(nccl_failure_is_due("ncclSend", 0));
  EXPECT_EQ(nccl().group_end(), ncclSystemError);
  end_in_order();
}

TEST_F(EmulatedNccl, ACapturedStreamAndOneOfAnotherDeviceAreRefused) {
  start(2);
  std::byte* const data = memory(0, kBytes, 0);
  ASSERT_EQ(cudaStreamBeginCapture(at(0).stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(broadcast(0, data, kBytes, 0), ncclInvalidUsage);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(at(0).stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(nccl().broadcast(data, data, kBytes, ncclUint8, 0, at(0).comm, at(1).stream),
            ncclInvalidUsage);
  end_in_order();
}

TEST_F(EmulatedNccl, AnEndInOrderWaitsForAllRanksAndTheirWork) {
  start(2);
  std::vector<std::byte*> data;
  for (int rank = 0; rank < 2; ++rank) {
    data.push_back(memory(rank, kBytes, rank));
    ASSERT_EQ(broadcast(rank, data.back(), kBytes, 1), ncclInProgress);
  }
  settle();
  ASSERT_EQ(nccl().comm_finalize(at(0).comm), ncclInProgress);
  EXPECT_EQ(state_at_last(0), ncclInProgress);
  EXPECT_EQ(query(1), cudaSuccess);
  EXPECT_EQ(state_at_last(0), ncclInProgress) << "its work is done, but its peer has not finalized";
  EXPECT_EQ(data[0][0], std::byte{1});
  ASSERT_EQ(nccl().comm_finalize(at(1).comm), ncclInProgress);
  settle();
  EXPECT_EQ(broadcast(0, data[0], kBytes, 1), ncclInvalidUsage);
  EXPECT_EQ(nccl_misuse(), "a call after ncclCommFinalize");
  clear_nccl_misuse();
  for (const Rank& rank : ranks) ASSERT_EQ(nccl().comm_destroy(rank.comm), ncclSuccess);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(nccl().comm_get_async_error(at(0).comm, &state), ncclInvalidArgument);
  EXPECT_EQ(nccl_misuse(), "ncclCommGetAsyncError of a communicator that there is not");
  clear_nccl_misuse();
  for (Rank& rank : ranks) rank.comm = nullptr;
}

TEST_F(EmulatedNccl, AnAsynchronousErrorStays) {
  start(2);
  std::byte* const data = memory(0, kBytes, 0);
  fail_communicators(0, ncclRemoteError);
  EXPECT_EQ(state(0), ncclRemoteError);
  EXPECT_EQ(broadcast(0, data, kBytes, 0), ncclRemoteError);
  EXPECT_EQ(nccl().comm_finalize(at(0).comm), ncclRemoteError);
  EXPECT_EQ(state(1), ncclSuccess);
}

}  // namespace
}  // namespace tributary::test
