// The destination of each block of a collective.
#include "core/interface/collective.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

namespace tributary {
namespace {

using Counts = std::vector<std::size_t>;

/// Where `block` lies in `buffer`, and its size.
template <typename Byte, typename Buffer>
std::pair<std::size_t, std::size_t> place(std::span<Byte> block, const Buffer& buffer) {
  return {static_cast<std::size_t>(block.data() - buffer.data()), block.size()};
}

class CollectiveBlocks : public testing::Test {
 protected:
  using Place = std::pair<std::size_t, std::size_t>;
  std::array<std::byte, 16> send_{};
  std::array<std::byte, 16> recv_{};
  Counts sent_{5, 0, 2};
  Counts received_{1, 4, 2};
  std::vector<int> all_{0, 1, 2};
};

TEST_F(CollectiveBlocks, ABroadcastsRootSendsToTheOthersAndKeepsItsOwn) {
  const Collective root{.root = 1, .send = send_};
  EXPECT_EQ(root.block_to(0).size(), 16U);
  EXPECT_EQ(root.block_to(1).size(), 0U);
  EXPECT_EQ(root.block_from(1).size(), 0U);
  EXPECT_EQ(bytes_to_others(root, 1, all_), 32U);
  const Collective other{.root = 1, .recv = recv_};
  EXPECT_EQ(other.block_to(0).size(), 0U);
  EXPECT_EQ(other.block_from(0).size(), 0U);
  EXPECT_EQ(other.block_from(1).size(), 16U);
  EXPECT_EQ(bytes_to_others(other, 0, all_), 0U);
}

TEST_F(CollectiveBlocks, AGatherSendsOneBlockToAll) {
  const Collective call{.kind = CollectiveKind::kAllGather,
                        .send = std::span(send_).first(4),
                        .recv = std::span(recv_).first(7),
                        .recv_counts = received_};
  for (int peer = 0; peer < 3; ++peer) {
    EXPECT_EQ(place(call.block_to(peer), send_), Place(0, 4)) << peer;
  }
  EXPECT_EQ(place(call.block_from(0), recv_), Place(0, 1));
  EXPECT_EQ(place(call.block_from(1), recv_), Place(1, 4));
  EXPECT_EQ(place(call.block_from(2), recv_), Place(5, 2));
  EXPECT_EQ(bytes_to_others(call, 1, all_), 8U);
}

TEST_F(CollectiveBlocks, AnExchangeHasABlockForEach) {
  const Collective call{.kind = CollectiveKind::kAllToAll,
                        .send = std::span(send_).first(7),
                        .recv = std::span(recv_).first(7),
                        .send_counts = sent_,
                        .recv_counts = received_};
  EXPECT_EQ(place(call.block_to(0), send_), Place(0, 5));
  EXPECT_EQ(place(call.block_to(1), send_), Place(5, 0));
  EXPECT_EQ(place(call.block_to(2), send_), Place(5, 2));
  EXPECT_EQ(place(call.block_from(2), recv_), Place(5, 2));
  EXPECT_EQ(bytes_to_others(call, 2, all_), 5U);
}

TEST_F(CollectiveBlocks, WhatGoesToOthersGoesToMembersAlone) {
  const std::vector<int> members{0, 2};
  const Collective root{.root = 2, .send = send_};
  EXPECT_EQ(bytes_to_others(root, 2, members), 16U);
  const Collective gather{.kind = CollectiveKind::kAllGather, .send = std::span(send_).first(4)};
  EXPECT_EQ(bytes_to_others(gather, 0, members), 4U);
  EXPECT_EQ(bytes_to_others(gather, 0, std::vector<int>{0}), 0U);
}

}  // namespace
}  // namespace tributary
