// Pulling rows: who is asked for which, how an answer leads on to others, and how a pull fails.
#include "deploy/service/client/row_pull.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/interface/manual_clock.h"
#include "deploy/service/client/row_pieces.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/client/fake_worker.h"
#include "tests/deploy/service/client/simulated_workers.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
using test::kSmallRowBytes;
using PullAnswer = test::SimulatedWorkers::Worker::PullAnswer;
using Asked = std::tuple<int, std::int64_t, std::int64_t>;  // layer, begin, count

const std::string kTwo = "tcp://two:1";

/// The byte at `i` of a row.
std::byte value(std::uint64_t id, int layer, std::int64_t position, std::size_t i) {
  return static_cast<std::byte>(id * 101 + static_cast<std::uint64_t>(layer) * 53 +
                                static_cast<std::uint64_t>(position) * 7 + i);
}

PullAnswer rows_of(const wire::Pull& pull, std::int64_t count, std::int32_t owner = -1) {
  PullAnswer answer{.reply = {.outcome = {}, .count = count, .owner = owner}, .rows = {}};
  for (std::int64_t p = pull.begin; p < pull.begin + count; ++p) {
    for (std::size_t i = 0; i < kSmallRowBytes; ++i) {
      answer.rows.push_back(value(pull.sequence_id, pull.layer, p, i));
    }
  }
  return answer;
}

PullAnswer refusal(ErrorCode code, const std::string& text) {
  return {.reply = {.outcome = {code, text}}, .rows = {}};
}

class RowPullTest : public testing::Test {
 protected:
  RowPullTest() {
    for (const std::string& address : {std::string(test::kOne), kTwo}) {
      workers_.at(address).on_pull = [](const wire::Pull& pull) {
        return rows_of(pull, pull.count);
      };
    }
  }

  static SequenceHandle sequence(std::uint64_t id, std::int64_t prompt, std::int64_t extent) {
    const std::vector<std::string> addresses{test::kOne, kTwo};
    return test::small_sequence(id, addresses, prompt, extent);
  }
  Status pull(std::span<const PulledRows> parts, milliseconds patience = milliseconds(200)) {
    return status_of(
        [&] { pull_rows(connections_, parts, Deadline::after(clock_.now(), patience)); });
  }
  Status pull(const SequenceHandle& sequence, int layer, std::int64_t begin,
              std::vector<std::byte>& rows, milliseconds patience = milliseconds(200)) {
    const PulledRows part{&sequence, layer, begin, rows};
    return pull(std::span(&part, 1), patience);
  }
  static std::vector<std::byte> room(std::int64_t rows) {
    return std::vector<std::byte>(static_cast<std::size_t>(rows) * kSmallRowBytes);
  }
  static void expect_rows(const SequenceHandle& sequence, int layer, std::int64_t begin,
                          std::span<const std::byte> rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto position = begin + static_cast<std::int64_t>(i / kSmallRowBytes);
      ASSERT_EQ(rows[i], value(sequence.id, layer, position, i % kSmallRowBytes)) << position;
    }
  }
  std::vector<Asked> asked(const std::string& address) {
    std::vector<Asked> result;
    for (const wire::Pull& pull : workers_.at(address).pulls) {
      result.emplace_back(pull.layer, pull.begin, pull.count);
    }
    return result;
  }

  ManualClock clock_;
  test::SimulatedWorkers workers_{clock_};
  // Without what watches silent workers, which has a thread: a manual clock is for one.
  WorkerConnections connections_{
      {}, workers_.make_transport(), TierClientConfig{}.max_in_flight_bytes, clock_};
};

TEST_F(RowPullTest, TheOwnersAreAskedForTheirExtents) {
  const SequenceHandle a = sequence(9, 400, 128);  // 0, 1, 0, 1
  auto rows = room(250);
  EXPECT_TRUE(pull(a, 2, 100, rows).ok());
  expect_rows(a, 2, 100, rows);
  EXPECT_THAT(asked(test::kOne), testing::ElementsAre(Asked(2, 100, 28), Asked(2, 256, 94)));
  EXPECT_THAT(asked(kTwo), testing::ElementsAre(Asked(2, 128, 128)));
  const wire::Pull& first = workers_.at(test::kOne).pulls.at(0);
  EXPECT_EQ(first.epoch, a.epoch);
  EXPECT_EQ(first.sequence_id, a.id);
  EXPECT_LE(first.deadline_us, 200'000U);
  EXPECT_GT(first.deadline_us, 0U);
}

TEST_F(RowPullTest, LongRangesGoInPiecesOfWholePagesAFewAtATime) {
  const std::int64_t piece = piece_rows(kSmallRowBytes);
  const std::int64_t pieces = static_cast<std::int64_t>(kPiecesAhead) + 3;
  const SequenceHandle a = sequence(9, pieces * piece, pieces * piece);
  auto rows = room(pieces * piece - 10);
  std::size_t most = 0;
  std::size_t answered = 0;
  workers_.at(test::kOne).on_pull = [&](const wire::Pull& pull) {
    clock_.after(milliseconds(1), [&] { ++answered; });  // when the answer comes
    most = std::max(most, workers_.at(test::kOne).pulls.size() - answered);
    return rows_of(pull, pull.count);
  };
  EXPECT_TRUE(pull(a, 0, 10, rows).ok());
  expect_rows(a, 0, 10, rows);
  EXPECT_EQ(most, kPiecesAhead);
  ASSERT_EQ(asked(test::kOne).size(), static_cast<std::size_t>(pieces));
  EXPECT_EQ(asked(test::kOne)[0], Asked(0, 10, piece - 10));
  EXPECT_EQ(asked(test::kOne)[1], Asked(0, piece, piece));
}

/// Worker 0 had them once; since then the leaf from 64 on has moved.
TEST_F(RowPullTest, WhoNoLongerHasTheRowsSaysWhoHas) {
  const SequenceHandle a = sequence(9, 200, 200);
  workers_.at(test::kOne).on_pull = [](const wire::Pull& pull) {
    return pull.begin < 64 ? rows_of(pull, 64 - pull.begin, 1) : rows_of(pull, pull.count);
  };
  workers_.at(kTwo).on_pull = [](const wire::Pull& pull) {
    return pull.begin < 128 ? rows_of(pull, 128 - pull.begin, 0) : rows_of(pull, 0, 0);
  };
  auto rows = room(180);
  EXPECT_TRUE(pull(a, 1, 20, rows).ok());
  expect_rows(a, 1, 20, rows);
  EXPECT_THAT(asked(test::kOne), testing::ElementsAre(Asked(1, 20, 180), Asked(1, 128, 72)));
  EXPECT_THAT(asked(kTwo), testing::ElementsAre(Asked(1, 64, 136)));
}

TEST_F(RowPullTest, TheHomeIsAskedForRowsBehindThePrompt) {
  SequenceHandle a = sequence(9, 100, 100);
  a.home = 1;
  a.length = 130;
  auto rows = room(40);
  EXPECT_TRUE(pull(a, 0, 90, rows).ok());
  expect_rows(a, 0, 90, rows);
  EXPECT_THAT(asked(test::kOne), testing::ElementsAre(Asked(0, 90, 10)));
  EXPECT_THAT(asked(kTwo), testing::ElementsAre(Asked(0, 100, 30)));
}

TEST_F(RowPullTest, OfManyPartsTheOthersArrive) {
  const SequenceHandle a = sequence(1, 100, 100), b = sequence(2, 100, 100),
                       c = sequence(3, 100, 50);
  workers_.at(test::kOne).on_pull = [](const wire::Pull& pull) {
    return pull.sequence_id == 2 ? refusal(ErrorCode::kNotFound, "2 has ended")
                                 : rows_of(pull, pull.count);
  };
  auto of_a = room(10), of_b = room(20), of_c = room(100);
  const std::vector<PulledRows> parts{{&a, 0, 5, of_a}, {&b, 1, 0, of_b}, {&c, 2, 0, of_c}};
  std::vector<std::size_t> failed;
  try {
    pull_rows(connections_, parts, Deadline::after(clock_.now(), milliseconds(200)));
  } catch (const ItemsError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    for (const ItemFailure& item : error.failed()) failed.push_back(item.index);
  }
  EXPECT_THAT(failed, testing::ElementsAre(1));
  expect_rows(a, 0, 5, of_a);
  expect_rows(c, 2, 0, of_c);
}

TEST_F(RowPullTest, AWorkerWithoutRoomIsAskedAgain) {
  const SequenceHandle a = sequence(9, 100, 100);
  int asked = 0;
  workers_.at(test::kOne).on_pull = [&](const wire::Pull& pull) {
    return ++asked < 4 ? refusal(ErrorCode::kPoolFull, "busy") : rows_of(pull, pull.count);
  };
  auto rows = room(100);
  EXPECT_TRUE(pull(a, 0, 0, rows, milliseconds(10'000)).ok());
  expect_rows(a, 0, 0, rows);
  workers_.at(test::kOne).on_pull = [&](const wire::Pull&) {
    return refusal(ErrorCode::kPoolFull, "busy");
  };
  const Status full = pull(a, 0, 0, rows);
  EXPECT_EQ(full.code(), ErrorCode::kPoolFull);
  EXPECT_THAT(full.message(), testing::HasSubstr("busy; tried again until the deadline"));
}

TEST_F(RowPullTest, AConnectionThatBreaksIsMadeAgain) {
  const SequenceHandle a = sequence(9, 100, 100);
  int asked = 0;
  workers_.at(test::kOne).on_pull = [&](const wire::Pull& pull) -> std::optional<PullAnswer> {
    if (++asked > 1) return rows_of(pull, pull.count);
    clock_.after({}, [&] { workers_.cut(test::kOne); });
    return std::nullopt;
  };
  auto rows = room(100);
  EXPECT_TRUE(pull(a, 0, 0, rows, milliseconds(10'000)).ok());
  expect_rows(a, 0, 0, rows);
  EXPECT_EQ(asked, 2);
}

TEST_F(RowPullTest, AnAnswerThatDoesNotComeEndsAtTheDeadline) {
  const SequenceHandle a = sequence(9, 100, 100);
  workers_.at(test::kOne).on_pull = [](const wire::Pull&) { return std::nullopt; };
  auto rows = room(100);
  const Time begin = clock_.now();
  EXPECT_EQ(pull(a, 0, 0, rows).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(clock_.now() - begin, milliseconds(200));
}

TEST_F(RowPullTest, WrongAnswersAreFoundOut) {
  const SequenceHandle a = sequence(9, 100, 100);
  const auto answered = [&](const auto& change) {
    workers_.at(test::kOne).on_pull = [&](const wire::Pull& pull) {
      PullAnswer answer = rows_of(pull, pull.count);
      change(answer);
      return answer;
    };
    auto rows = room(100);
    return pull(a, 0, 0, rows).code();
  };
  EXPECT_EQ(answered([](PullAnswer& answer) { answer.reply.crc32c = 1; }), ErrorCode::kCorrupt);
  EXPECT_EQ(answered([](PullAnswer& answer) { answer.rows.pop_back(); }),
            ErrorCode::kMalformedInput);
  EXPECT_EQ(answered([](PullAnswer& answer) { answer.reply.count = 101; }),
            ErrorCode::kMalformedInput);
  const auto without_rows = [&](std::int64_t count, std::int32_t owner) {
    return answered([=](PullAnswer& answer) {
      answer.rows.clear();
      answer.reply.count = count;
      answer.reply.owner = owner;
    });
  };
  EXPECT_EQ(without_rows(-1, 1), ErrorCode::kMalformedInput);
  EXPECT_EQ(without_rows(0, -1), ErrorCode::kMalformedInput);
  EXPECT_EQ(without_rows(0, 2), ErrorCode::kMalformedInput) << "there are two workers";
  EXPECT_EQ(without_rows(0, 0), ErrorCode::kWorkerLost) << "another one has its address";
}

TEST_F(RowPullTest, WhatTheSequenceDoesNotHaveIsRefusedByName) {
  const SequenceHandle a = sequence(9, 100, 100);
  const auto refused = [&](const std::string& text, int layer, std::int64_t begin,
                           std::size_t bytes) {
    std::vector<std::byte> rows(bytes);
    const Status status = pull(a, layer, begin, rows);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.message();
    EXPECT_THAT(status.message(), testing::HasSubstr(text));
  };
  refused("layer 3: the pool has 3", 3, 0, kSmallRowBytes);
  refused("layer -1", -1, 0, kSmallRowBytes);
  refused("rows 99 to 101: sequence 9 has 100", 0, 99, 2 * kSmallRowBytes);
  refused("rows -1 to 0", 0, -1, kSmallRowBytes);
  refused("rows 5 to 5: sequence 9 has 100", 0, 5, 0);
  refused("25 bytes of rows: not a multiple of 24", 0, 0, 25);
  EXPECT_TRUE(workers_.at(test::kOne).connects.empty());
}

}  // namespace
}  // namespace tributary
