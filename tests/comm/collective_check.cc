// The contents of test collectives, and their check.
#include "tests/comm/collective_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

namespace tributary::testing_support {
namespace {

std::size_t sum(const std::vector<std::size_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

/// The finaliser of splitmix64: every bit of the result depends on every bit of x.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

void append(std::vector<std::byte>& to, const std::vector<std::byte>& block) {
  to.insert(to.end(), block.begin(), block.end());
}

void expect_equal(const std::vector<std::byte>& actual, const std::vector<std::byte>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  if (actual == expected) return;
  const auto a = std::ranges::mismatch(actual, expected).in1;
  ADD_FAILURE() << "first wrong byte at " << a - actual.begin() << " of " << actual.size();
}

}  // namespace

Deadline ample_deadline() {
  return Deadline::after(std::chrono::seconds(60));
}

std::vector<std::byte> pattern(std::uint64_t call, int from, int to, std::size_t bytes) {
  const std::uint64_t seed =
      mix(call * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(from * 4096 + to + 1));
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = mix(seed + i);
    std::memcpy(data.data() + i, &word, std::min(sizeof(word), bytes - i));
  }
  return data;
}

void check_broadcast(Communicator& communicator, std::uint64_t call, int root, std::size_t bytes) {
  SCOPED_TRACE(testing::Message() << "broadcast " << call << " on rank " << communicator.rank());
  const std::vector<std::byte> expected = pattern(call, root, 0, bytes);
  std::vector<std::byte> data =
      communicator.rank() == root ? expected : std::vector<std::byte>(bytes, std::byte{0xee});
  const Status status = communicator.broadcast(data, root, ample_deadline());
  ASSERT_TRUE(status.ok()) << status.message();
  expect_equal(data, expected);
}

void check_all_gather(Communicator& communicator, std::uint64_t call,
                      const std::vector<std::size_t>& counts) {
  SCOPED_TRACE(testing::Message() << "all_gather " << call << " on rank " << communicator.rank());
  const int rank = communicator.rank();
  const std::vector<std::byte> send =
      pattern(call, rank, 0, counts[static_cast<std::size_t>(rank)]);
  std::vector<std::byte> recv(sum(counts), std::byte{0xee});
  const Status status = communicator.all_gather(send, recv, counts, ample_deadline());
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<std::byte> expected;
  for (int from = 0; from < communicator.size(); ++from) {
    append(expected, pattern(call, from, 0, counts[static_cast<std::size_t>(from)]));
  }
  expect_equal(recv, expected);
}

void check_all_to_all(Communicator& communicator, std::uint64_t call,
                      const std::vector<std::vector<std::size_t>>& counts) {
  SCOPED_TRACE(testing::Message() << "all_to_all " << call << " on rank " << communicator.rank());
  const int rank = communicator.rank();
  const auto self = static_cast<std::size_t>(rank);
  std::vector<std::size_t> recv_counts;
  std::vector<std::byte> send;
  std::vector<std::byte> expected;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    const auto p = static_cast<std::size_t>(peer);
    recv_counts.push_back(counts[p][self]);
    append(send, pattern(call, rank, peer, counts[self][p]));
    append(expected, pattern(call, peer, rank, counts[p][self]));
  }
  std::vector<std::byte> recv(expected.size(), std::byte{0xee});
  const Status status =
      communicator.all_to_all(send, counts[self], recv, recv_counts, ample_deadline());
  ASSERT_TRUE(status.ok()) << status.message();
  expect_equal(recv, expected);
}

std::vector<std::size_t> ragged_counts(std::mt19937_64& random, int n, std::size_t max_bytes) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(n));
  for (std::size_t& count : counts) {
    const std::uint64_t draw = random();
    count = draw % 3 == 0 ? 0 : (draw >> 8U) % (max_bytes + 1);
  }
  return counts;
}

}  // namespace tributary::testing_support
