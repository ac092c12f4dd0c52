// Pushing rows: how they are cut, how many may be in flight, and how a failed push ends.
#include "deploy/service/client/row_push.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "deploy/service/client/row_pieces.h"
#include "tests/deploy/service/client/client_fixture.h"

namespace tributary {
namespace {

using test::expect_error;
using test::FakeWorker;
using test::kSmallRowBytes;
using test::small_sequence;
using test::without_control_plane;

class RowPushTest : public test::ClientFixture {};

TEST_F(RowPushTest, RowsAreSplitByExtentAndPage) {
  FakeWorker other;
  const std::vector<std::string> addresses = {worker_.address(), other.address()};
  const SequenceHandle a = small_sequence(9, addresses, 400, 128);  // 0, 1, 0, 1
  std::vector<std::byte> rows(250 * kSmallRowBytes);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i * 31);
  client_->push_rows(a, 2, 100, rows);
  const auto mine = worker_.received();
  const auto others = other.received();
  const auto ranges = [](const FakeWorker::Received& received) {
    std::vector<std::pair<std::int64_t, std::int64_t>> result;
    for (const wire::Rows& r : received.rows) result.emplace_back(r.begin, r.count);
    return result;
  };
  using Range = std::pair<std::int64_t, std::int64_t>;
  EXPECT_THAT(ranges(mine), testing::UnorderedElementsAre(Range(100, 28), Range(256, 94)));
  EXPECT_THAT(ranges(others), testing::UnorderedElementsAre(Range(128, 128)));
  for (const auto* received : {&mine, &others}) {
    for (std::size_t i = 0; i < received->rows.size(); ++i) {
      const wire::Rows& r = received->rows[i];
      EXPECT_EQ(r.layer, 2);
      EXPECT_EQ(r.epoch, 3U);
      EXPECT_EQ(std::memcmp(received->row_payloads[i].data(),
                            &rows[static_cast<std::size_t>(r.begin - 100) * kSmallRowBytes],
                            received->row_payloads[i].size()),
                0);
    }
  }
}

TEST_F(RowPushTest, ManyPiecesGoWithinTheBoundOfBytesInFlight) {
  TierClientConfig config;
  config.max_in_flight_bytes = 1;  // one piece at a time
  make_client(config);
  const std::int64_t piece = piece_rows(kSmallRowBytes);
  EXPECT_EQ(piece % 64, 0);
  const std::string address = worker_.address();
  const SequenceHandle a = small_sequence(9, std::span(&address, 1), 3 * piece, 3 * piece);
  client_->push_rows(a, 0, 0,
                     std::vector<std::byte>(static_cast<std::size_t>(3 * piece) * kSmallRowBytes));
  const auto rows = worker_.received().rows;
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1].begin, piece);
}

TEST_F(RowPushTest, AConnectionThatBreaksWhileTheNextPieceWaitsForRoomIsMadeAgain) {
  TierClientConfig config = without_control_plane();
  config.max_in_flight_bytes = 1;
  make_client(config);
  bool broken = false;
  worker_.on_rows = [&](const wire::Rows&) {
    if (std::exchange(broken, true)) return std::optional(wire::RowsReply{});
    worker_.disconnect();
    return std::optional<wire::RowsReply>();
  };
  const std::int64_t piece = piece_rows(kSmallRowBytes);
  const std::string address = worker_.address();
  const SequenceHandle a = small_sequence(9, std::span(&address, 1), 2 * piece, 2 * piece);
  const std::vector<std::byte> rows(static_cast<std::size_t>(2 * piece) * kSmallRowBytes);
  client_->push_rows(a, 0, 0, rows, Deadline::after(test::kFar / 4));
  EXPECT_EQ(worker_.received().rows.size(), 3U);
}

TEST_F(RowPushTest, RefusedRowsAreAnErrorAndTheRestIsNotSent) {
  TierClientConfig config;
  config.max_in_flight_bytes = 1;
  make_client(config);
  worker_.on_rows = [](const wire::Rows&) {
    wire::RowsReply reply;
    reply.outcome = {ErrorCode::kAlreadyExists, "rows 0 to 9 came before"};
    return std::optional(reply);
  };
  const std::int64_t piece = piece_rows(kSmallRowBytes);
  const std::string address = worker_.address();
  const SequenceHandle a = small_sequence(9, std::span(&address, 1), 5 * piece, 5 * piece);
  const std::vector<std::byte> rows(static_cast<std::size_t>(5 * piece) * kSmallRowBytes);
  expect_error(ErrorCode::kAlreadyExists, "came before",
               [&] { client_->push_rows(a, 0, 0, rows); });
  EXPECT_LE(worker_.received().rows.size(), 2U);
}

TEST_F(RowPushTest, OfManySequencesTheOthersArrive) {
  worker_.on_rows = [](const wire::Rows& rows) {
    wire::RowsReply reply;
    if (rows.sequence_id == 2) reply.outcome = {ErrorCode::kNotFound, "2 has ended"};
    return std::optional(reply);
  };
  const SequenceHandle a = sequence(1), b = sequence(2), c = sequence(3);
  const std::vector<std::byte> rows(10 * kSmallRowBytes);
  const std::vector<PromptRows> parts = {{&a, 0, 0, rows}, {&b, 1, 20, rows}, {&c, 2, 190, rows}};
  std::vector<std::size_t> failed;
  try {
    client_->push_rows(parts);
  } catch (const ItemsError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    for (const ItemFailure& item : error.failed()) failed.push_back(item.index);
  }
  EXPECT_EQ(failed, std::vector<std::size_t>{1});
  const auto received = worker_.received().rows;
  ASSERT_EQ(received.size(), 3U);
  EXPECT_EQ(received[2].begin, 190);
  EXPECT_EQ(received[2].layer, 2);
}

}  // namespace
}  // namespace tributary
