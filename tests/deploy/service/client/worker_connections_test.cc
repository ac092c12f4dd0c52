// Connections that fail, workers that are silent or full, and deadlines that pass, in simulated
// time: when what is sent, and who hears of it, to the tick.
#include "deploy/service/client/worker_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "deploy/service/client/control_call.h"
#include "deploy/service/client/layer_call.h"
#include "deploy/service/client/pool_judge.h"
#include "deploy/service/client/row_pieces.h"
#include "deploy/service/client/row_push.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/client/fake_worker.h"
#include "tests/deploy/service/client/simulated_workers.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
using test::in_ms;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SimulatedConnections : public testing::Test {
 protected:
  static SequenceHandle sequence(std::uint64_t id, const std::string& address = test::kOne) {
    return test::small_sequence(id, std::span(&address, 1), 200, 200);
  }
  static Deadline by(milliseconds time) { return Deadline(Time{} + time); }
  static std::int64_t ms(Time time) { return in_ms({time}).front(); }

  /// One message for each of the sequences.
  std::vector<Status> call(const std::vector<SequenceHandle>& sequences, Deadline deadline,
                           wire::ControlOp op = wire::ControlOp::kReady) {
    std::vector<ControlRequest> requests;
    requests.reserve(sequences.size());
    for (const SequenceHandle& sequence : sequences) {
      requests.push_back({.op = op, .sequence = &sequence, .alone = true});
    }
    std::vector<Status> statuses;
    for (const auto& outcome : control(connections_, requests, deadline)) {
      statuses.push_back(outcome.status);
    }
    return statuses;
  }
  Status call(Deadline deadline, wire::ControlOp op = wire::ControlOp::kReady) {
    return call({sequence(7)}, deadline, op).front();
  }
  Status attend(Deadline deadline) {
    SequenceHandle one = sequence(7);
    return attend(one, deadline);
  }
  Status attend(SequenceHandle& one, Deadline deadline) {
    std::vector<float> output(test::kSmallOutput, -1);
    const std::byte* record = input_.data();
    const LayerItem item{.sequence = &one,
                         .query = {record, 0},
                         .row = {record + test::kSmallInput - test::kSmallRowBytes, 0},
                         .output = output.data()};
    return status_of([&] {
      run_layer(connections_, wire::LayerMode::kAttend, std::span(&item, 1), 0, deadline);
    });
  }
  Status push(std::int64_t pieces, Deadline deadline) {
    const std::int64_t rows = pieces * piece_rows(test::kSmallRowBytes);
    const std::string address = test::kOne;
    const SequenceHandle one = test::small_sequence(7, std::span(&address, 1), rows, rows);
    const std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * test::kSmallRowBytes);
    const PromptRows part{&one, 0, 0, bytes};
    return status_of([&] { push_rows(connections_, std::span(&part, 1), deadline); });
  }

  ManualClock clock_;
  test::SimulatedWorkers workers_{clock_};
  test::SimulatedWorkers::Worker& worker_ = workers_.at(test::kOne);
  std::vector<std::byte> input_ = std::vector<std::byte>(test::kSmallInput, std::byte{1});
  std::vector<Time> told_;
  std::string text_;
  WorkerConnections connections_{
      {}, workers_.make_transport(), 1, clock_, [this](const std::string& text) {
        told_.push_back(clock_.now());
        text_ = text;
      }};
};

TEST_F(SimulatedConnections, AnAnswerTakesAHandshakeAndTwoHops) {
  EXPECT_TRUE(call(by(milliseconds(100))).ok());
  EXPECT_EQ(ms(clock_.now()), 5);  // it opens, hello, welcome, message, answer
  EXPECT_TRUE(call(by(milliseconds(100))).ok());
  EXPECT_EQ(ms(clock_.now()), 7);
  EXPECT_THAT(in_ms(worker_.connects), ElementsAre(0));
}

TEST_F(SimulatedConnections, AWorkerThatIsDownIsTriedAgainAfterPausesThatDouble) {
  worker_.refusal = test::SimulatedWorkers::refused();
  const Status status = call(by(milliseconds(3'000)));
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(status.message(),
            "worker tcp://one:1: Connection refused; tried again until the deadline");
  EXPECT_EQ(ms(clock_.now()), 3'000);
  EXPECT_THAT(in_ms(worker_.connects), ElementsAre(0, 6, 17, 38, 79, 160, 321, 642, 963, 1'284,
                                                   1'605, 1'926, 2'247, 2'568, 2'889));
  // Looks are half a second apart from the first failure on.
  EXPECT_THAT(in_ms(told_), ElementsAre(2'001)) << "once";
  EXPECT_EQ(text_,
            "worker tcp://one:1: Connection refused; calls wait for it until their deadlines");
}

TEST_F(SimulatedConnections, AWorkerThatComesBackIsReachedByTheNextTryAndNotComplainedAbout) {
  worker_.refusal = test::SimulatedWorkers::refused();
  clock_.after(milliseconds(650), [&] { worker_.refusal = {}; });
  EXPECT_TRUE(call(by(milliseconds(3'000))).ok());
  EXPECT_EQ(worker_.connects.size(), 9U);
  EXPECT_EQ(ms(clock_.now()), 963 + 5);
  worker_.refusal = test::SimulatedWorkers::refused();
  workers_.cut(test::kOne);
  EXPECT_FALSE(call(by(milliseconds(2'967))).ok());
  EXPECT_THAT(told_, IsEmpty()) << "a new absence, of less than two seconds";
}

TEST_F(SimulatedConnections, AWorkerThatDoesNotAnswerIsSilentEachHalfSecond) {
  worker_.on_control = [](const wire::Control&) { return std::nullopt; };
  std::vector<Time> silent;
  connections_.watch([&](const std::vector<SilentWorker>& workers) {
    silent.push_back(clock_.now());
    ASSERT_EQ(workers.size(), 1U);
    EXPECT_EQ(workers[0].address, test::kOne);
    EXPECT_EQ(workers[0].greetings.at(0).sequence_id, 7U);
  });
  const Status status = call(by(milliseconds(1'700)));
  EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("no answer before the deadline"));
  EXPECT_EQ(ms(clock_.now()), 1'700);
  EXPECT_THAT(in_ms(silent), ElementsAre(500, 1'000, 1'500));
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(SimulatedConnections, AWorkerThatWelcomesNobodyIsComplainedAbout) {
  worker_.welcomes = false;
  const Status status = call(by(milliseconds(2'100)));
  EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("no answer to the greeting"));
  EXPECT_THAT(in_ms(told_), ElementsAre(2'000));
  EXPECT_THAT(text_, HasSubstr("worker tcp://one:1 does not answer; calls wait"));
}

TEST_F(SimulatedConnections, AFailureIsAskedAboutAtOnceAndThenEachHalfSecond) {
  worker_.refusal = test::SimulatedWorkers::refused();
  std::vector<Time> silent;
  connections_.watch([&](const std::vector<SilentWorker>&) { silent.push_back(clock_.now()); });
  EXPECT_FALSE(call(by(milliseconds(1'200))).ok());
  EXPECT_THAT(in_ms(silent), ElementsAre(1, 501, 1'001));
}

TEST_F(SimulatedConnections, AFullWorkerIsAskedAgainUntilTheDeadline) {
  worker_.on_round = [](const wire::LayerRequest&) {
    return wire::LayerReply{.items = {ErrorCode::kPoolFull}, .message = "too many requests wait"};
  };
  const Status status = attend(by(milliseconds(300)));
  EXPECT_EQ(status.code(), ErrorCode::kPoolFull);
  EXPECT_THAT(status.message(),
              HasSubstr("too many requests wait; tried again until the deadline"));
  EXPECT_EQ(ms(clock_.now()), 300);
  // Each answer takes a hop, each repetition another: 2 ms beside pauses of 10, 20, 40, 80, 160.
  EXPECT_THAT(in_ms(worker_.rounds), ElementsAre(4, 16, 38, 80, 162));
}

TEST_F(SimulatedConnections, AFullWorkerThatGetsRoomServes) {
  worker_.on_round = [&](const wire::LayerRequest&) {
    const bool room = clock_.now() > Time{} + milliseconds(30);
    return wire::LayerReply{.items = {room ? ErrorCode::kOk : ErrorCode::kPoolFull}, .message = {}};
  };
  EXPECT_TRUE(attend(by(milliseconds(300))).ok());
  EXPECT_EQ(ms(clock_.now()), 39);
}

/// The worker is behind with controls; an extension may find no room for its rows.
TEST_F(SimulatedConnections, AControlThatFindsNoRoomIsSentAgainUnlessItAsksForRoom) {
  worker_.on_control = [&](const wire::Control& control) {
    const bool room = clock_.now() > Time{} + milliseconds(30);
    return wire::ControlReply{
        .items = std::vector<wire::ControlReply::Item>(
            control.items.size(), {.code = room ? ErrorCode::kOk : ErrorCode::kPoolFull}),
        .message = "too many controls wait"};
  };
  EXPECT_EQ(call(by(milliseconds(300)), wire::ControlOp::kExtend).code(), ErrorCode::kPoolFull);
  EXPECT_EQ(worker_.controls.size(), 1U);
  EXPECT_TRUE(call(by(milliseconds(300)), wire::ControlOp::kCommit).ok());
  EXPECT_TRUE(call(by(milliseconds(300)), wire::ControlOp::kTruncate).ok());
  EXPECT_GT(worker_.controls.size(), 3U);
}

TEST_F(SimulatedConnections, ALayerFollowsItsSequenceToAnotherHome) {
  const std::string addresses[] = {test::kOne, "tcp://two:1"};
  SequenceHandle moved = test::small_sequence(7, addresses, 200, 200);
  const auto says = [](std::int32_t home) {
    return [home](const wire::LayerRequest&) {
      return wire::LayerReply{.items = {ErrorCode::kFailedPrecondition},
                              .message = "it has gone",
                              .moved = {{0, home}}};
    };
  };
  worker_.on_round = says(1);
  EXPECT_TRUE(attend(moved, by(milliseconds(100))).ok());
  EXPECT_EQ(moved.home, 1);
  EXPECT_EQ(ms(clock_.now()), 10) << "a handshake and two hops at each";
  EXPECT_TRUE(attend(moved, by(milliseconds(100))).ok());
  EXPECT_EQ(ms(clock_.now()), 12) << "the new home alone";

  test::SimulatedWorkers::Worker& other = workers_.at(addresses[1]);
  other.on_round = says(0);
  const Status late = attend(moved, by(milliseconds(100)));
  EXPECT_EQ(late.code(), ErrorCode::kDeadlineExceeded) << "to and fro";
  EXPECT_LE(ms(clock_.now()), 102);
  moved.home = 1;
  other.on_round = says(2);
  const Status nowhere = attend(moved, by(milliseconds(200)));
  EXPECT_EQ(nowhere.code(), ErrorCode::kMalformedInput);
  EXPECT_THAT(nowhere.message(), HasSubstr("sequence 7 went to worker 2, its pool has 2"));
  EXPECT_EQ(moved.home, 1);
}

/// What was sent twice to the first home may wait at the leader, while the second is asked.
TEST_F(SimulatedConnections, ALayerThatWasSentAgainIsRepeatedAtTheNextHomeToo) {
  const std::string addresses[] = {test::kOne, "tcp://two:1"};
  test::SimulatedWorkers::Worker& other = workers_.at(addresses[1]);
  for (const bool sent_again : {false, true}) {
    SequenceHandle sequence = test::small_sequence(7, addresses, 200, 200);
    bool cuts = sent_again;
    worker_.on_round = [&](const wire::LayerRequest&) -> std::optional<wire::LayerReply> {
      if (std::exchange(cuts, false)) {
        clock_.after({}, [&] { workers_.cut(test::kOne); });
        return std::nullopt;
      }
      return wire::LayerReply{
          .items = {ErrorCode::kFailedPrecondition}, .message = "it has gone", .moved = {{0, 1}}};
    };
    int asked = 0;
    other.on_round = [&](const wire::LayerRequest&) {
      const bool waits = ++asked == 1;
      return wire::LayerReply{.items = {waits ? ErrorCode::kFailedPrecondition : ErrorCode::kOk},
                              .message = "another layer waits for its round"};
    };
    const Status status = attend(sequence, Deadline(clock_.now() + milliseconds(300)));
    EXPECT_EQ(status.code(), sent_again ? ErrorCode::kOk : ErrorCode::kFailedPrecondition)
        << status.message();
    EXPECT_EQ(asked, sent_again ? 2 : 1);
  }
}

TEST_F(SimulatedConnections, AControlSaysWhereTheSequenceIsAtHome) {
  const std::string addresses[] = {test::kOne, "tcp://two:1"};
  const SequenceHandle sequence = test::small_sequence(7, addresses, 200, 200);
  const auto home_after = [&](std::int32_t said) {
    worker_.on_control = [said](const wire::Control&) {
      return wire::ControlReply{.items = {{ErrorCode::kOk, 3, 200, said}}, .message = {}};
    };
    const ControlRequest request{.op = wire::ControlOp::kRenew, .sequence = &sequence};
    return control(connections_, std::span(&request, 1), by(milliseconds(100))).front().home;
  };
  EXPECT_EQ(home_after(1), 1);
  EXPECT_EQ(home_after(-1), 0) << "unknown";
  EXPECT_EQ(home_after(2), 0) << "no worker of the pool";
}

TEST_F(SimulatedConnections, WhatWasNotAnsweredIsSentAgainOverANewConnection) {
  worker_.on_control = [&, first = true](const wire::Control& control) mutable {
    if (std::exchange(first, false)) {
      clock_.after(milliseconds(6), [&] { workers_.cut(test::kOne); });
      return std::optional<wire::ControlReply>();
    }
    return std::optional(wire::ControlReply{
        .items = std::vector<wire::ControlReply::Item>(control.items.size()), .message = {}});
  };
  EXPECT_TRUE(call(by(milliseconds(300))).ok());
  EXPECT_THAT(in_ms(worker_.controls), ElementsAre(4, 19));  // the end at 10, a pause of 5, 4 hops
  EXPECT_EQ(ms(clock_.now()), 20);
}

TEST_F(SimulatedConnections, ATruncationIsNotSentAgain) {
  worker_.on_control = [&](const wire::Control&) {
    clock_.after({}, [&] { workers_.cut(test::kOne); });
    return std::nullopt;
  };
  const Status status = call(by(milliseconds(300)), wire::ControlOp::kTruncate);
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("whether the worker has done it is not known"));
  EXPECT_EQ(worker_.controls.size(), 1U);
  EXPECT_EQ(ms(clock_.now()), 4 + 5 + 3) << "it is known when the next connection is there";
}

TEST_F(SimulatedConnections, WhatTheBudgetHasNoRoomForWaits) {
  EXPECT_TRUE(push(3, by(milliseconds(300))).ok());
  EXPECT_THAT(in_ms(worker_.rows), ElementsAre(4, 6, 8))
      << "each when the one before has been answered";
}

TEST_F(SimulatedConnections, RowsThatFoundNoRoomByTheDeadlineWereNotSent) {
  worker_.on_rows = [](const wire::Rows&) { return std::nullopt; };
  const Status status = push(2, by(milliseconds(300)));
  EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ms(clock_.now()), 300);
  EXPECT_EQ(worker_.rows.size(), 1U);
}

TEST_F(SimulatedConnections, AConnectionThatHoldsTheCallersMemoryIsCutAtTheDeadline) {
  ASSERT_TRUE(call(by(milliseconds(100))).ok());
  worker_.takes_payloads = false;
  EXPECT_EQ(attend(by(milliseconds(300))).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ms(clock_.now()), 310) << "a last moment for a message that is just being read";
  worker_.takes_payloads = true;
  EXPECT_TRUE(attend(by(milliseconds(400))).ok());
  EXPECT_EQ(worker_.connects.size(), 2U);
}

TEST_F(SimulatedConnections, AWorkerThatIsOnlyFullOfConnectionsIsUnavailable) {
  worker_.refusal = {ErrorCode::kPoolFull, "all places are taken"};
  const Status status = call(by(milliseconds(100)));
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("all places are taken; tried again until the deadline"));
}

TEST_F(SimulatedConnections, ALateReplyWritesNothingAndTheNextCallGetsItsOwn) {
  worker_.thinks = milliseconds(100);
  EXPECT_EQ(attend(by(milliseconds(50))).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ms(clock_.now()), 50);
  EXPECT_TRUE(attend(by(milliseconds(300))).ok());
  EXPECT_EQ(ms(clock_.now()), 152);
  EXPECT_THAT(in_ms(worker_.connects), ElementsAre(0));
}

TEST_F(SimulatedConnections, NothingIsSentAfterADeadlineThatPassedBeforeTheWelcome) {
  worker_.welcomes = false;
  EXPECT_EQ(attend(by(milliseconds(50))).code(), ErrorCode::kDeadlineExceeded);
  worker_.welcomes = true;
  workers_.cut(test::kOne);
  EXPECT_TRUE(call(by(milliseconds(300))).ok());
  EXPECT_THAT(worker_.rounds, IsEmpty());
}

TEST_F(SimulatedConnections, ACallReturnsWhenTheTransportHasLetGoOfWhatItSends) {
  worker_.lets_go = milliseconds(40);
  worker_.takes_payloads = false;
  EXPECT_EQ(attend(by(milliseconds(300))).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ms(clock_.now()), 350);
}

TEST_F(SimulatedConnections, ACallReturnsWhenTheTransportHasLetGoOfWhatItReceives) {
  worker_.lets_go = milliseconds(40);
  worker_.lands_payloads = false;
  EXPECT_EQ(attend(by(milliseconds(300))).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ms(clock_.now()), 350);
}

TEST_F(SimulatedConnections, WorkersGetTheirPiecesByTurnsAndNotTooManyAtOnce) {
  WorkerConnections roomy{{}, workers_.make_transport(), std::size_t{1} << 30, clock_};
  const std::vector<std::string> addresses = {test::kOne, "tcp://two:1"};
  const std::int64_t share =
      (static_cast<std::int64_t>(kPiecesAhead) + 1) * piece_rows(test::kSmallRowBytes);
  const SequenceHandle one = test::small_sequence(7, addresses, 2 * share, share);
  const std::vector<std::byte> bytes(static_cast<std::size_t>(2 * share) * test::kSmallRowBytes);
  const PromptRows part{&one, 0, 0, bytes};
  for (const std::string& address : addresses) {
    workers_.at(address).on_rows = [](const wire::Rows&) { return std::nullopt; };
  }
  EXPECT_EQ(code_of([&] { push_rows(roomy, std::span(&part, 1), by(milliseconds(300))); }),
            ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ms(clock_.now()), 300);
  for (const std::string& address : addresses) {
    EXPECT_THAT(workers_.at(address).rows, testing::SizeIs(kPiecesAhead)) << address;
  }
}

/// A control plane that says of each sequence what a test tells it.
class SaidOf final : public ControlPlane {
 public:
  SequenceHandle admit(const AdmitRequest& /*wanted*/, Deadline /*deadline*/) override {
    return {};
  }
  SequenceHandle query(SequenceId id, Deadline /*deadline*/) override {
    asked.push_back(id);
    const auto found = codes.find(id);
    if (found != codes.end()) throw Error(found->second, "why");
    SequenceHandle handle;
    handle.addresses = {address};
    return handle;
  }
  void free(SequenceId /*id*/, const std::string& /*pool*/, Deadline /*deadline*/) override {}
  std::vector<std::string> workers(Deadline /*deadline*/) override { return {}; }

  std::string address = test::kOne;  // of the pool's worker
  std::map<SequenceId, ErrorCode> codes;
  std::vector<SequenceId> asked;
};

class SimulatedJudge : public SimulatedConnections {
 protected:
  void SetUp() override {
    connections_.watch([&](const std::vector<SilentWorker>& silent) {
      if (judging_) return;
      clock_.after({}, [this, silent] {
        judging_ = true;
        judge_.judge(silent);
        judging_ = false;
      });
    });
  }
  std::vector<SequenceHandle> six() {
    std::vector<SequenceHandle> sequences;
    for (std::uint64_t id = 1; id <= 6; ++id) sequences.push_back(sequence(id));
    return sequences;
  }
  static std::vector<ErrorCode> codes(const std::vector<Status>& statuses) {
    std::vector<ErrorCode> codes;
    codes.reserve(statuses.size());
    for (const Status& status : statuses) codes.push_back(status.code());
    return codes;
  }

  SaidOf control_;
  PoolJudge judge_{control_, connections_};
  bool judging_ = false;
};

TEST_F(SimulatedJudge, OneOfSixThatHasEndedEndsItsOwnCallsAlone) {
  for (std::uint64_t ended = 1; ended <= 6; ++ended) {
    control_.codes = {{ended, ErrorCode::kNotFound}};
    worker_.on_control = [ended](const wire::Control& control) {
      const bool gone = control.items[0].sequence_id == ended;
      return wire::ControlReply{.items = {{gone ? ErrorCode::kNotFound : ErrorCode::kOk, 1, 0}},
                                .message = "gone"};
    };
    workers_.cut(test::kOne);
    worker_.refusal = test::SimulatedWorkers::refused();
    clock_.after(milliseconds(1'000), [&] { worker_.refusal = {}; });
    std::vector<ErrorCode> expected(6, ErrorCode::kOk);
    expected[ended - 1] = ErrorCode::kNotFound;
    EXPECT_EQ(codes(call(six(), Deadline(clock_.now() + milliseconds(5'000)))), expected) << ended;
    clock_.advance(milliseconds(1));  // what was still to be judged
  }
}

TEST_F(SimulatedJudge, AWorkerOutOfReachWhoseSequencesHaveAllEndedIsGivenUpAtOnce) {
  worker_.refusal = test::SimulatedWorkers::refused();
  for (std::uint64_t id = 1; id <= 6; ++id) control_.codes[id] = ErrorCode::kNotFound;
  const auto statuses = call(six(), by(milliseconds(5'000)));
  EXPECT_THAT(codes(statuses), testing::Each(ErrorCode::kPoolLost));
  EXPECT_THAT(statuses[0].message(),
              HasSubstr("it cannot be reached, and the control plane says: why"));
  EXPECT_EQ(ms(clock_.now()), 1);
  EXPECT_EQ(control_.asked.size(), 6U);
}

TEST_F(SimulatedJudge, ALostPoolWhoseWorkerCannotBeReachedIsGivenUpAtOnce) {
  worker_.refusal = test::SimulatedWorkers::refused();
  for (std::uint64_t id = 1; id <= 6; ++id) control_.codes[id] = ErrorCode::kPoolLost;
  EXPECT_THAT(codes(call(six(), by(milliseconds(5'000)))), testing::Each(ErrorCode::kPoolLost));
  EXPECT_EQ(ms(clock_.now()), 1);
  EXPECT_EQ(control_.asked.size(), 1U) << "one answer is about the pool";
}

TEST_F(SimulatedJudge, AStoppedWorkerOfALostPoolIsAskedOnceMore) {
  worker_.on_control = [](const wire::Control&) { return std::nullopt; };
  control_.codes[7] = ErrorCode::kPoolLost;
  EXPECT_EQ(call(by(milliseconds(5'000))).code(), ErrorCode::kPoolLost);
  EXPECT_EQ(ms(clock_.now()), 1'500) << "after half a second it is silent, after one more lost";
}

TEST_F(SimulatedJudge, AWorkerThatAnswersIsNotGivenUpWhateverTheControlPlaneSays) {
  worker_.on_control = [&](const wire::Control& control) {
    const bool asked = control.items[0].op == wire::ControlOp::kRenew;
    return asked ? std::optional(
                       wire::ControlReply{.items = {{ErrorCode::kNotFound, 0, 0}}, .message = {}})
                 : std::nullopt;
  };
  control_.codes[7] = ErrorCode::kPoolLost;
  EXPECT_EQ(call(by(milliseconds(5'000))).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(ms(clock_.now()), 5'000);
}

TEST_F(SimulatedJudge, AWorkerWhosePlaceAnotherHasTakenIsGivenUpAtOnce) {
  worker_.refusal = test::SimulatedWorkers::refused();
  control_.address = "tcp://another:1";
  const auto statuses = call(six(), by(milliseconds(5'000)));
  EXPECT_THAT(codes(statuses), testing::Each(ErrorCode::kWorkerLost));
  EXPECT_EQ(ms(clock_.now()), 1);
  EXPECT_EQ(control_.asked.size(), 1U);
}

TEST_F(SimulatedJudge, APoolThatIsOnlyOutOfSightIsWaitedFor) {
  worker_.refusal = test::SimulatedWorkers::refused();
  control_.codes[7] = ErrorCode::kUnavailable;
  clock_.after(milliseconds(3'000), [&] { worker_.refusal = {}; });
  EXPECT_TRUE(call(by(milliseconds(5'000))).ok());
  EXPECT_GT(control_.asked.size(), 3U);
}

TEST_F(SimulatedJudge, ASilentWorkerOfASequenceThatHasEndedIsNotGivenUp) {
  worker_.on_control = [](const wire::Control&) { return std::nullopt; };
  control_.codes[7] = ErrorCode::kNotFound;
  EXPECT_EQ(call(by(milliseconds(2'000))).code(), ErrorCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace tributary
