// Tokens that select rows, at a pool that serves: selections as they travel, good and bad.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/deploy/service/worker/pool_user.h"

namespace tributary::test {
namespace {

constexpr int kTopk = 8;

WorkerOptions sparse_options() {
  WorkerOptions options = small_options();
  options.topk = kTopk;
  return options;
}

/// Two tokens of `first`, the second of which selects `list`, and one of `second`.
RawClient::RoundResult attend(PoolUser& user, const UserSequence& first,
                              const std::vector<std::int32_t>& list, const UserSequence& second) {
  const std::vector<PoolUser::Part> parts{{&first, 2, 0}, {&second, 1, 0}};
  std::vector<std::byte> payload = user.round_payload(parts);
  const std::size_t record = user.shape().token_record_bytes();
  std::memcpy(payload.data() + record + user.shape().selected_offset(), list.data(),
              list.size() * sizeof(std::int32_t));
  for (const PoolUser::Part& part : parts) (void)user.peer(0, *part.sequence);
  return user.client.wait_round(
      user.client.send_round(user.peer(0, first), user.round_header(parts), std::move(payload)));
}

TEST(ServiceSelection, OutputsAreThoseWithoutAService) {
  ServicePool pool(2, sparse_options());
  PoolUser user(pool);
  UserSequence sequence = user.start(1, 130, 8);
  PoolOutputs outputs;
  while (sequence.length < 138) user.decode(sequence, 2, outputs);
  const auto expected = outputs_without_service(user.shape(), {{1, 130, 8}}, 2);
  EXPECT_EQ(differing_outputs(outputs, expected), 0U);
}

TEST(ServiceSelection, ABadListIsRefusedByNameAndTheOtherItemRuns) {
  ServicePool pool(1, sparse_options());
  PoolUser user(pool);
  const UserSequence bad = user.start(1, 70, 8);
  const UserSequence good = user.start(2, 70, 8);
  const auto expected = outputs_without_service(user.shape(), {{2, 70, 8}}, 1);
  for (const auto& [list, words] : std::vector<std::pair<std::vector<std::int32_t>, std::string>>{
           {{72}, "token 1: selected[0] is 72, must be a position from 0 to 71"},
           {{-2}, "token 1: selected[0] is -2, must be a position from 0 to 71"},
           {{3, 3}, "token 1: selected[1] is 3 again"},
           {{3, 2}, "token 1: selected[1] is 2, must be above 3"},
           {{3, -1, 5}, "token 1: selected[2] is 5, must be -1 behind a -1"}}) {
    const auto answer = attend(user, bad, list, good);
    EXPECT_EQ(answer.reply.items, (std::vector{ErrorCode::kInvalidArgument, ErrorCode::kOk}));
    EXPECT_THAT(answer.reply.message, testing::StartsWith(words));
    PoolOutputs outputs;
    user.collect({{&good, 1, 0}}, answer.floats(), outputs);
    EXPECT_EQ(outputs.at({2, 0, 70}), expected.at({2, 0, 70}));
  }
  // Nothing has changed: no step is open.
  EXPECT_EQ(user.control(bad, wire::ControlOp::kCommit, 72).items.at(0).code,
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(attend(user, bad, {0, 71, -1, -1, -1, -1, -1, -1}, good).reply.items.at(0),
            ErrorCode::kOk);
}

}  // namespace
}  // namespace tributary::test
