// The leases that a client renews, and the time when it stops.
#include "deploy/service/client/lease_keeper.h"

#include <algorithm>
#include <atomic>

#include "tests/deploy/service/client/client_fixture.h"

namespace tributary {
namespace {

class LeaseKeeperTest : public test::ClientFixture {
 protected:
  SequenceHandle short_lived(std::uint64_t id) {
    SequenceHandle handle = sequence(id);
    handle.lease_ms = 30;
    return handle;
  }
  static std::ptrdiff_t renewals(const test::FakeWorker::Received& received, std::uint64_t id) {
    std::ptrdiff_t count = 0;
    for (const wire::Control& control : received.controls) {
      count += std::ranges::count_if(control.items, [&](const wire::ControlItem& item) {
        return item.op == wire::ControlOp::kRenew && item.sequence_id == id;
      });
    }
    return count;
  }
};

TEST_F(LeaseKeeperTest, TruncationAdoptsNothing) {
  SequenceHandle another = short_lived(1);
  client_->truncate(another, 100);
  SequenceHandle mine = short_lived(2);
  client_->adopt_trusted(mine);
  client_->truncate(mine, 100);
  worker_.wait_until([](const auto& received) { return renewals(received, 2) >= 3; });
  EXPECT_EQ(renewals(worker_.received(), 1), 0) << "its owner renews it, or lets it end";
}

TEST_F(LeaseKeeperTest, RenewsTheEpochThatATruncationBegan) {
  SequenceHandle mine = short_lived(2);
  client_->adopt_trusted(mine);
  client_->truncate(mine, 100);
  worker_.wait_until([](const auto& received) {
    return !received.controls.empty() &&
           received.controls.back().items[0].op == wire::ControlOp::kRenew &&
           received.controls.back().items[0].epoch == 4;
  });
}

TEST_F(LeaseKeeperTest, GoesOnWhereConnectionsEndBeforeTheWelcome) {
  std::atomic<int> greetings = 0;
  worker_.on_hello = [&](const wire::Hello& hello) -> std::optional<wire::Welcome> {
    if (++greetings > 5) return wire::Welcome{.outcome = {}, .shape = hello.shape};
    worker_.disconnect();
    return std::nullopt;
  };
  client_->adopt_trusted(short_lived(2));
  worker_.wait_until([](const auto& received) { return renewals(received, 2) >= 3; });
}

}  // namespace
}  // namespace tributary
