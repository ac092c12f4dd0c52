// The calls of a client that try again by themselves, in simulated time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deploy/service/client/control_plane.h"
#include "deploy/service/client/tier_client.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/client/fake_worker.h"
#include "tests/deploy/service/client/simulated_workers.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
using test::in_ms;
using testing::ElementsAre;

/// Says no to every admission.
class Refusing final : public ControlPlane {
 public:
  explicit Refusing(const Clock& clock) : clock_(clock) {}
  SequenceHandle admit(const AdmitRequest& wanted, Deadline /*deadline*/) override {
    tries.push_back(clock_.now());
    keys.push_back(wanted.idempotency_key);
    secrets.push_back(wanted.idempotency_secret);
    if (full) throw PoolFullError("full", milliseconds(30));
    fail(ErrorCode::kUnavailable, "starting");
  }
  SequenceHandle query(SequenceId /*id*/, Deadline /*deadline*/) override { return {}; }
  void free(SequenceId /*id*/, const std::string& /*pool*/, Deadline /*deadline*/) override {}
  std::vector<std::string> workers(Deadline /*deadline*/) override { return {}; }

  bool full = false;
  std::vector<Time> tries;
  std::vector<std::string> keys, secrets;

 private:
  const Clock& clock_;
};

class TierClientTime : public testing::Test {
 protected:
  static TierClientConfig config() {
    TierClientConfig config;
    config.renew_leases = false;
    return config;
  }
  ErrorCode admit() {
    return code_of([&] {
      (void)client_.admit_waiting({.prompt_tokens = 1, .max_new_tokens = 1, .idempotency_key = {}},
                                  Deadline(Time{} + milliseconds(250)));
    });
  }

  ManualClock clock_;
  test::SimulatedWorkers workers_{clock_};
  std::shared_ptr<Refusing> control_ = std::make_shared<Refusing>(clock_);
  TierClient client_{config(), workers_.make_transport(), control_, clock_};
};

TEST_F(TierClientTime, AnAdmissionWaitsForATierThatStarts) {
  EXPECT_EQ(admit(), ErrorCode::kUnavailable);
  EXPECT_THAT(in_ms(control_->tries), ElementsAre(0, 100, 200));
  EXPECT_THAT(control_->keys, testing::Each(control_->keys.front())) << "it is one admission";
}

TEST_F(TierClientTime, AClientHasASecretOfItsOwn) {
  TierClient other(config(), workers_.make_transport(), control_, clock_);
  for (TierClient* client : {&client_, &client_, &other}) {
    EXPECT_EQ(
        code_of([&] { (void)client->admit({.max_new_tokens = 1, .idempotency_key = "key"}); }),
        ErrorCode::kUnavailable);
  }
  EXPECT_EQ(code_of([&] { (void)client_.admit({.max_new_tokens = 1, .idempotency_secret = "s"}); }),
            ErrorCode::kUnavailable);
  const std::vector<std::string>& secrets = control_->secrets;
  ASSERT_EQ(secrets.size(), 4U);
  EXPECT_EQ(secrets[0].size(), 32U);  // 128 random bits
  EXPECT_EQ(secrets[0], secrets[1]);
  EXPECT_NE(secrets[0], secrets[2]);
  EXPECT_EQ(secrets[3], "s");
}

TEST_F(TierClientTime, AnAdmissionWaitsForRoomAsLongAsTheTierSays) {
  control_->full = true;
  EXPECT_EQ(admit(), ErrorCode::kPoolFull);
  EXPECT_THAT(in_ms(control_->tries), ElementsAre(0, 30, 60, 90, 120, 150, 180, 210, 240));
}

TEST_F(TierClientTime, ReadinessIsAskedForAfterPausesThatDouble) {
  const std::string address = test::kOne;
  std::vector<SequenceHandle> sequences;
  for (const std::uint64_t id : {1, 2, 3}) {
    sequences.push_back(test::small_sequence(id, std::span(&address, 1), 200, 200));
  }
  workers_.at(test::kOne).on_control = [](const wire::Control& control) {
    wire::ControlReply reply{.items = {}, .message = "as the leader has it"};
    for (const wire::ControlItem& item : control.items) {
      reply.items.push_back({item.sequence_id == 1   ? ErrorCode::kOk
                             : item.sequence_id == 2 ? ErrorCode::kUnavailable
                                                     : ErrorCode::kNotFound,
                             item.epoch, item.length});
    }
    return reply;
  };
  const std::vector<const SequenceHandle*> all = {&sequences[0], &sequences[1], &sequences[2]};
  try {
    client_.wait_ready(all, Deadline(Time{} + milliseconds(100)));
    ADD_FAILURE() << "two of them are not";
  } catch (const ItemsError& error) {
    ASSERT_EQ(error.failed().size(), 2U);
    EXPECT_EQ(error.failed()[0].index, 1U);
    EXPECT_EQ(error.failed()[0].status.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(error.failed()[0].status.message(),
              "sequence 2 is not ready: as the leader has it (its pool's rows are f32)");
    EXPECT_EQ(error.failed()[1].index, 2U);
    EXPECT_EQ(error.failed()[1].status.code(), ErrorCode::kNotFound);
  }
  EXPECT_THAT(in_ms(workers_.at(test::kOne).controls), ElementsAre(4, 7, 11, 17, 27, 45, 79));
  EXPECT_THAT(in_ms({clock_.now()}), ElementsAre(80)) << "the next pause would pass the deadline";
}

TEST_F(TierClientTime, WhoIsNotReadyAtTheDeadlineHearsWhatWasMissingWhereTheLastAnswerIsLate) {
  const std::string address = test::kOne;
  const SequenceHandle sequence = test::small_sequence(2, std::span(&address, 1), 200, 200);
  int asked = 0;
  workers_.at(test::kOne).on_control = [&](const wire::Control& control) {
    std::optional<wire::ControlReply> reply;
    if (++asked == 2) return reply;
    reply.emplace(wire::ControlReply{.items = {}, .message = "rows of layer 7"});
    reply->items.push_back(
        {ErrorCode::kUnavailable, control.items[0].epoch, control.items[0].length});
    return reply;
  };
  const SequenceHandle* const one = &sequence;
  try {
    client_.wait_ready(std::span(&one, 1), Deadline(Time{} + milliseconds(100)));
    ADD_FAILURE() << "it is not";
  } catch (const ItemsError& error) {
    ASSERT_EQ(error.failed().size(), 1U);
    EXPECT_EQ(error.failed()[0].status.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(error.failed()[0].status.message(),
              "sequence 2 is not ready: rows of layer 7 (its pool's rows are f32)");
  }
  EXPECT_EQ(asked, 2);
}

TEST_F(TierClientTime, AQueriedSequenceIsStillItsOwners) {
  SequenceHandle sequence;
  sequence.token.fill(7);
  EXPECT_EQ(client_.query(sequence).token, sequence.token);
}

}  // namespace
}  // namespace tributary
