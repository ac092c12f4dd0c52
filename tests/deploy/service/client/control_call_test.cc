// Commits, renewals and layers of several sequences: if one is not known any more, or one worker
// does not answer, the others go on.
#include "deploy/service/client/control_call.h"

#include <future>
#include <map>
#include <set>

#include "comm/wire/codec.h"
#include "tests/deploy/service/client/client_fixture.h"

namespace tributary {
namespace {

using test::FakeWorker;
using test::kFar;

/// A worker that has been restarted knows only the sequences of this list.
void knows(FakeWorker& worker, const std::set<std::uint64_t>& ids) {
  const auto code = [ids](std::uint64_t id) {
    return ids.contains(id) ? ErrorCode::kOk : ErrorCode::kPermissionDenied;
  };
  worker.on_hello = [code](const FakeWorker::Hello& hello) {
    return wire::Welcome{.outcome = {code(hello.sequence_id), "not the token of the sequence"},
                         .shape = hello.shape};
  };
  worker.on_control = [code](const wire::Control& control) {
    wire::ControlReply reply{.items = {}, .message = "not the token"};
    for (const wire::ControlItem& item : control.items) {
      reply.items.push_back({code(item.sequence_id), item.epoch, item.length});
    }
    return reply;
  };
  worker.on_round = [code](const wire::LayerRequest& round, std::span<const std::byte>) {
    FakeWorker::RoundAnswer answer;
    for (const StepItem& item : round.items) {
      answer.reply.items.push_back(code(item.id));
      if (code(item.id) == ErrorCode::kOk) {
        answer.payload.resize(answer.payload.size() + test::kSmallOutput * sizeof(float));
      }
    }
    return answer;
  };
}

class StaleHandles : public test::ClientFixture {
 protected:
  void commit(std::span<SequenceHandle> sequences) {
    std::vector<SequenceHandle*> all;
    for (SequenceHandle& sequence : sequences) all.push_back(&sequence);
    client_->commit(all, std::vector<std::int32_t>(all.size(), 1), Deadline::after(kFar));
  }
};

TEST_F(StaleHandles, DoNotKeepTheOthersOut) {
  knows(worker_, {3});
  std::vector<SequenceHandle> sequences{sequence(1), sequence(2), sequence(3), sequence(4)};
  std::vector<std::size_t> failed;
  try {
    commit(sequences);
  } catch (const ItemsError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPermissionDenied);
    for (const ItemFailure& item : error.failed()) failed.push_back(item.index);
  }
  EXPECT_EQ(failed, (std::vector<std::size_t>{0, 1, 3}));
  EXPECT_EQ(sequences[0].length, 200);
  EXPECT_EQ(sequences[2].length, 201);
  EXPECT_EQ(sequences[3].length, 200);
}

TEST_F(StaleHandles, AloneAreRefused) {
  knows(worker_, {});
  std::vector<SequenceHandle> sequences{sequence(1), sequence(2)};
  test::expect_error(ErrorCode::kPermissionDenied, "not the token", [&] { commit(sequences); });
  EXPECT_EQ(worker_.received().hellos.size(), 2U);
  EXPECT_TRUE(worker_.received().controls.empty());
}

/// Where the transport's proof fails, before any greeting is read.
TEST_F(StaleHandles, WithAWrongTokenDoNotKeepTheOthersOutEither) {
  SequenceHandle wrong = sequence(1);
  wrong.token.back() ^= 1;
  test::expect_error(ErrorCode::kPermissionDenied, "the secret of 1 was refused",
                     [&] { commit(std::span(&wrong, 1)); });
  EXPECT_TRUE(worker_.received().hellos.empty());
  std::vector<SequenceHandle> sequences{sequence(2), wrong};
  commit(sequences);
  EXPECT_EQ(sequences[0].length, 201);
  const auto hellos = worker_.received().hellos;
  ASSERT_EQ(hellos.size(), 1U);
  EXPECT_EQ(hellos[0].sequence_id, 2U);
}

TEST_F(StaleHandles, OfABatchLeaveTheOthersTheirOutputs) {
  knows(worker_, {2});
  SequenceHandle stale = sequence(1);
  SequenceHandle other_model = sequence(3);
  other_model.shape.heads = 4;
  SequenceHandle good = sequence(2);
  std::vector<float> x, y, z;
  std::vector<LayerItem> items = {item(stale, x), item(other_model, y), item(good, z)};
  y.resize(2 * test::kSmallOutput);
  items[1].output = y.data();
  items[1].query.stride = items[1].row.stride = 0;
  EXPECT_EQ(code_of([&] { client_->attend(items, 0, Deadline::after(kFar)); }),
            ErrorCode::kPermissionDenied);
  EXPECT_THAT(x, testing::Each(-1));
  EXPECT_THAT(z, testing::Each(0));
}

TEST_F(StaleHandles, EndNoHealthyLeases) {
  knows(worker_, {2, 3});
  for (const std::uint64_t id : {1, 2, 3, 4}) {
    SequenceHandle kept = sequence(id);
    kept.lease_ms = 30;
    client_->adopt_trusted(kept);
  }
  worker_.wait_until([](const auto& received) {
    std::map<std::uint64_t, int> renewals;  // in messages without the others
    for (const wire::Control& control : received.controls) {
      std::set<std::uint64_t> ids;
      for (const wire::ControlItem& item : control.items) ids.insert(item.sequence_id);
      if (ids.contains(1) || ids.contains(4)) continue;
      for (const std::uint64_t id : ids) ++renewals[id];
    }
    return renewals[2] >= 3 && renewals[3] >= 3;
  });
}

TEST_F(StaleHandles, OfOneCallAreNotAnothersRefusal) {
  std::promise<void> greeted;
  worker_.on_hello = [&](const FakeWorker::Hello& hello) -> std::optional<wire::Welcome> {
    if (hello.sequence_id == 2) return wire::Welcome{.outcome = {}, .shape = hello.shape};
    greeted.set_value();
    return std::nullopt;  // no answer until both calls wait
  };
  SequenceHandle stale = sequence(1);
  SequenceHandle good = sequence(2);
  auto refused = std::async(std::launch::async, [&] {
    return code_of([&] { client_->truncate(stale, 100, Deadline::after(kFar)); });
  });
  greeted.get_future().wait();
  auto done = std::async(std::launch::async, [&] {
    return code_of([&] { client_->truncate(good, 100, Deadline::after(kFar)); });
  });
  // The second call may wait before the refusal or begin after it, with the same result.
  worker_.send_raw(static_cast<std::uint16_t>(wire::MessageType::kWelcome),
                   wire::encode(wire::Welcome{.outcome = {ErrorCode::kPermissionDenied, "stale"},
                                              .shape = stale.shape}));
  EXPECT_EQ(refused.get(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(done.get(), ErrorCode::kOk);
}

class SilentWorkers : public test::ClientFixture {
 protected:
  SequenceHandle at(const FakeWorker& worker, std::uint64_t id) {
    SequenceHandle handle = sequence(id);
    handle.addresses = {worker.address()};
    return handle;
  }
  /// Answers no greeting but the second.
  static std::optional<wire::Welcome> welcome_second(const wire::Hello& hello, int& greetings) {
    if (++greetings != 2) return std::nullopt;
    return wire::Welcome{.outcome = {}, .shape = hello.shape};
  }
  FakeWorker other_;
};

/// In both orders, whichever home is first.
TEST_F(SilentWorkers, DoNotHoldUpTheOthersCommits) {
  for (auto [silent, good] : {std::pair(&worker_, &other_), std::pair(&other_, &worker_)}) {
    make_client();
    const std::size_t before = good->received().controls.size();
    const std::size_t greeted = silent->received().hellos.size();
    silent->on_hello = [greetings = 0](const wire::Hello& hello) mutable {
      return welcome_second(hello, greetings);
    };
    good->on_hello = nullptr;
    SequenceHandle a = at(*silent, 1);
    SequenceHandle b = at(*good, 2);
    auto committed = std::async(std::launch::async, [&] {
      const std::vector<SequenceHandle*> both{&a, &b};
      return code_of([&] {
        client_->commit(both, std::vector<std::int32_t>{1, 1}, Deadline::after(kFar));
      });
    });
    good->wait_until([&](const auto& received) { return received.controls.size() > before; });
    silent->wait_until([&](const auto& received) { return received.hellos.size() > greeted; });
    silent->disconnect();
    EXPECT_EQ(committed.get(), ErrorCode::kOk);
    EXPECT_EQ(a.length, 201);
    EXPECT_EQ(b.length, 201);
  }
}

TEST_F(SilentWorkers, DoNotHoldUpTheOthersLayers) {
  worker_.on_hello = [greetings = 0](const wire::Hello& hello) mutable {
    return welcome_second(hello, greetings);
  };
  SequenceHandle a = at(worker_, 1);
  SequenceHandle b = at(other_, 2);
  std::vector<float> x, y;
  const std::vector<LayerItem> items = {item(a, x), item(b, y)};
  auto ended = std::async(std::launch::async, [&] {
    return code_of([&] { client_->attend(items, 0, Deadline::after(kFar)); });
  });
  other_.wait_until([](const auto& received) { return !received.rounds.empty(); });
  worker_.wait_until([](const auto& received) { return !received.hellos.empty(); });
  worker_.disconnect();
  EXPECT_EQ(ended.get(), ErrorCode::kOk);
  EXPECT_THAT(x, testing::Each(1));
  EXPECT_THAT(y, testing::Each(2));
}

TEST_F(SilentWorkers, AHandleWithoutAHomeIsItsOwnMistake) {
  SequenceHandle bad = sequence(1);
  bad.home = 7;
  SequenceHandle good = sequence(2);
  const std::vector<SequenceHandle*> both{&bad, &good};
  EXPECT_EQ(code_of([&] {
              client_->commit(both, std::vector<std::int32_t>{1, 1});
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(good.length, 201);
}

}  // namespace
}  // namespace tributary
