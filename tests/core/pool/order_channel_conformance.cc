#include "tests/core/pool/order_channel_conformance.h"

#include <chrono>
#include <cstddef>
#include <latch>
#include <vector>

namespace tributary::test {
namespace {

/// A deadline for events that must happen.
constexpr auto kPatient = std::chrono::seconds(30);

Status nothing_failed() {
  return {};
}

std::vector<std::byte> order_of(std::size_t bytes) {
  std::vector<std::byte> order(bytes);
  for (std::size_t i = 0; i < bytes; ++i) order[i] = static_cast<std::byte>(i * 7 + bytes);
  return order;
}

TEST_P(OrderChannelConformance, OrdersComeInTheOrderOfSendingWithAllTheirBytes) {
  // Around the sizes that one broadcast or one header can carry.
  const std::vector<std::size_t> sizes{1, 4087, 100, 4088, 4089, 1 << 20, 1, 5000};
  GetParam()(3, [&](const OrderRank& rank) {
    std::vector<std::byte> order;
    for (const std::size_t size : sizes) {
      if (rank.communicator.rank() == 0) {
        order = order_of(size);
        EXPECT_TRUE(rank.channel.send(order, Deadline::after(kPatient)).ok());
        order.assign(size, std::byte{0});  // the caller may reuse it
      } else {
        const Status status = rank.channel.wait(order, Deadline::after(kPatient), nothing_failed);
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(order, order_of(size));
      }
    }
  });
}

TEST_P(OrderChannelConformance, WithoutOthersAnOrderIsSentAllTheSame) {
  GetParam()(1, [](const OrderRank& rank) {
    EXPECT_TRUE(rank.channel.send(order_of(10), Deadline::after(kPatient)).ok());
  });
}

TEST_P(OrderChannelConformance, AMissedDeadlineIsTold) {
  GetParam()(3, [](const OrderRank& rank) {
    if (rank.communicator.rank() == 0) return;
    std::vector<std::byte> order;
    const auto deadline = Deadline::after(std::chrono::milliseconds(20));
    EXPECT_EQ(rank.channel.wait(order, deadline, nothing_failed).code(),
              ErrorCode::kDeadlineExceeded);
  });
}

TEST_P(OrderChannelConformance, ALostLeaderEndsTheWait) {
  GetParam()(3, [](const OrderRank& rank) {
    if (rank.communicator.rank() == 0) {
      rank.leave();
      return;
    }
    std::vector<std::byte> order;
    const auto deadline = Deadline::after(kPatient);
    EXPECT_EQ(rank.channel.wait(order, deadline, nothing_failed).code(), ErrorCode::kPoolLost);
    EXPECT_FALSE(deadline.expired());
  });
}

/// From another thread, before it waits, and from what it looks at.
TEST_P(OrderChannelConformance, WhoIsWokenLooksAtOnceAndGoesOnToWait) {
  std::latch looked(1);
  GetParam()(2, [&](const OrderRank& rank) {
    if (rank.communicator.rank() == 0) {
      looked.wait();
      EXPECT_TRUE(rank.channel.send(order_of(10), Deadline::after(kPatient)).ok());
      return;
    }
    rank.channel.wake();
    int looks = 0;
    std::vector<std::byte> order;
    const Status status = rank.channel.wait(order, Deadline::after(kPatient), [&] {
      if (++looks < 50) rank.channel.wake();
      if (looks == 50) looked.count_down();
      return Status();
    });
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(order, order_of(10));
    EXPECT_GE(looks, 50);
  });
}

TEST_P(OrderChannelConformance, AFailureOfAnotherRankEndsTheWait) {
  GetParam()(3, [](const OrderRank& rank) {
    if (rank.communicator.rank() == 0) return;
    if (rank.communicator.rank() == 1) {
      rank.communicator.poison({ErrorCode::kPoolFull, "no memory on rank 1"});
      return;
    }
    std::vector<std::byte> order;
    const Status status = rank.channel.wait(order, Deadline::after(kPatient),
                                            [&] { return rank.communicator.look_for_failure(); });
    EXPECT_EQ(status.code(), ErrorCode::kPoolFull);
    EXPECT_EQ(status.message(), "no memory on rank 1");
  });
}

}  // namespace
}  // namespace tributary::test
