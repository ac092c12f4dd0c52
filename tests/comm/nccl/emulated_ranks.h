// Ranks of the emulated NCCL that one thread drives, since no call of it blocks. Checks at the end
// of a test that it has left nothing behind.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "comm/nccl/nccl_table.h"
#include "tests/comm/nccl/emulated/emulated_nccl.h"
#include "tests/kernels/cuda/runtime/emulated_device.h"

namespace tributary::test {

/// Four devices. Fails a test that leaves something on them or misuses them.
class EmulatedDevices : public testing::Test {
 protected:
  void SetUp() override {
    set_device_count(4);
    before_ = device_objects();
  }
  void TearDown() override {
    EXPECT_EQ(device_fault(), "");
    EXPECT_EQ(nccl_misuse(), "");
    EXPECT_EQ(live_communicators(), 0U);
    EXPECT_EQ(device_objects(), before_);
    clear_device_fault();
    clear_nccl_misuse();
    (void)cudaSetDevice(0);
    set_device_count(1);
  }

 private:
  DeviceObjects before_;
};

class EmulatedRanks : public EmulatedDevices {
 protected:
  struct Rank {
    cudaStream_t stream = nullptr;
    ncclComm_t comm = nullptr;
  };

  void TearDown() override {
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
      use(rank);
      if (at(rank).comm != nullptr) (void)nccl().comm_abort(at(rank).comm);
      (void)cudaStreamQuery(at(rank).stream);
      (void)cudaStreamDestroy(at(rank).stream);
    }
    for (std::byte* data : memory_) (void)cudaFree(data);
    EmulatedDevices::TearDown();
  }

  static void use(int device) { ASSERT_EQ(cudaSetDevice(device), cudaSuccess); }
  Rank& at(int rank) { return ranks[static_cast<std::size_t>(rank)]; }

  /// Starts to make the communicator of `rank` on `device`.
  ncclResult_t join(const ncclUniqueId& id, int size, int rank, int device) {
    use(device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ranks.resize(static_cast<std::size_t>(size));
    EXPECT_EQ(cudaStreamCreateWithFlags(&at(rank).stream, cudaStreamNonBlocking), cudaSuccess);
    return nccl().comm_init_rank_config(&at(rank).comm, size, id, rank, &config);
  }
  void start(int size) {
    ncclUniqueId id;
    ASSERT_EQ(nccl().get_unique_id(&id), ncclSuccess);
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_EQ(join(id, size, rank, rank), ncclInProgress);
    }
    settle();
  }
  void end_in_order() {
    for (Rank& rank : ranks) ASSERT_EQ(nccl().comm_finalize(rank.comm), ncclInProgress);
    settle();
    for (Rank& rank : ranks) {
      ASSERT_EQ(nccl().comm_destroy(rank.comm), ncclSuccess);
      rank.comm = nullptr;
    }
  }

  ncclResult_t state(int rank) {
    ncclResult_t state = ncclInternalError;
    EXPECT_EQ(nccl().comm_get_async_error(at(rank).comm, &state), ncclSuccess);
    return state;
  }
  ncclResult_t state_at_last(int rank) {
    for (int poll = 0; poll < 20; ++poll) {
      if (const ncclResult_t now = state(rank); now != ncclInProgress) return now;
    }
    return ncclInProgress;
  }
  void settle() {
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) (void)state_at_last(rank);
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
      ASSERT_EQ(state_at_last(rank), ncclSuccess) << "rank " << rank;
    }
  }
  cudaError_t query(int rank) {
    use(rank);
    return cudaStreamQuery(at(rank).stream);
  }

  /// Memory of the device, every byte `value`.
  std::byte* memory(int device, std::size_t bytes, int value) {
    use(device);
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
    std::memset(data, value, bytes);
    memory_.push_back(static_cast<std::byte*>(data));
    return memory_.back();
  }
  void free_memory(std::byte* data) {
    std::erase(memory_, data);
    EXPECT_EQ(cudaFree(data), cudaSuccess);
  }

  ncclResult_t send(int rank, const std::byte* from, std::size_t bytes, int peer) {
    use(rank);
    return nccl().send(from, bytes, ncclUint8, peer, at(rank).comm, at(rank).stream);
  }
  ncclResult_t recv(int rank, std::byte* to, std::size_t bytes, int peer) {
    use(rank);
    return nccl().recv(to, bytes, ncclUint8, peer, at(rank).comm, at(rank).stream);
  }
  ncclResult_t broadcast(int rank, std::byte* data, std::size_t bytes, int root) {
    use(rank);
    return nccl().broadcast(data, data, bytes, ncclUint8, root, at(rank).comm, at(rank).stream);
  }

  std::vector<Rank> ranks;

 private:
  std::vector<std::byte*> memory_;
};

}  // namespace tributary::test
