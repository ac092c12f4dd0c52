#include "core/pool/broadcast_orders.h"

#include "comm/local/run_ranks.h"
#include "tests/core/pool/order_channel_conformance.h"

namespace tributary::test {
namespace {

void broadcast_ranks(int ranks, const std::function<void(const OrderRank&)>& body) {
  run_ranks(ranks, [&](Communicator& communicator) {
    BroadcastOrders channel(communicator, std::chrono::seconds(30));
    body({.communicator = communicator, .channel = channel, .leave = [&] {
            communicator.poison({ErrorCode::kPoolLost, "rank 0 has gone"});
          }});
  });
}

INSTANTIATE_TEST_SUITE_P(Broadcast, OrderChannelConformance,
                         testing::Values(RunOrderRanks(broadcast_ranks)));

}  // namespace
}  // namespace tributary::test
