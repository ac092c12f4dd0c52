// The suite that every channel for a pool's orders passes. An implementation joins with a file that
// says how ranks get one:
//
//   INSTANTIATE_TEST_SUITE_P(DataPlane, OrderChannelConformance, testing::Values(ranks));
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "core/interface/communicator.h"
#include "core/pool/order_channel.h"

namespace tributary::test {

/// One rank of a test, on a thread of its own.
struct OrderRank {
  Communicator& communicator;  // between the ranks, and what the channel may use
  OrderChannel& channel;
  std::function<void()> leave;  // rank 0 leaves, so that the others can notice
};

/// Runs `body` on `ranks` ranks, whose channels live until it has returned on all of them.
using RunOrderRanks =
    std::function<void(int ranks, const std::function<void(const OrderRank&)>& body)>;

class OrderChannelConformance : public testing::TestWithParam<RunOrderRanks> {};

}  // namespace tributary::test
