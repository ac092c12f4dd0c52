// Rows that must not be accepted, at a pool that serves: refused, counted, never readable.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"
#include "tests/deploy/service/worker/pool_user.h"

namespace tributary::test {
namespace {

using wire::Refusal;

/// Waits for the workers' next heartbeats, which carry the counts.
std::uint64_t refused(ServicePool& pool, Refusal reason, std::uint64_t expected) {
  const auto deadline = Deadline::after(kPatience);
  const auto count = [&] {
    return pool.heartbeat().metrics.refused_rows[static_cast<std::size_t>(reason)];
  };
  while (count() < expected && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return count();
}

class ServiceRows : public testing::TestWithParam<TransportChoice> {
 protected:
  static WorkerOptions options() {
    WorkerOptions options = small_options();
    options.transport = GetParam();
    return options;
  }
  wire::Outcome send(const UserSequence& sequence, const wire::Rows& rows,
                     std::vector<std::byte> payload, std::optional<std::uint32_t> crc = {}) {
    const PeerId peer = user.peer(sequence.info.extents.at(0).rank, sequence);
    return user.client.wait_rows(user.client.send_rows(peer, rows, std::move(payload), crc))
        .outcome;
  }
  wire::Outcome send(const UserSequence& sequence, const wire::Rows& rows) {
    return send(sequence, rows, user.rows(sequence, 0, rows.begin, rows.begin + rows.count));
  }

  ServicePool pool{1, options()};
  PoolUser user{pool};
};

TEST_P(ServiceRows, AreRefusedWithTheirReason) {
  const UserSequence sequence = user.admit(1, 100, 4);
  const auto rows = [&](std::int64_t begin, std::int64_t end) {
    return user.rows_header(sequence, 0, begin, end);
  };
  EXPECT_TRUE(send(sequence, rows(0, 10)).ok());
  EXPECT_EQ(send(sequence, rows(0, 9)).code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(send(sequence, rows(5, 15)).code, ErrorCode::kAlreadyExists);
  EXPECT_TRUE(send(sequence, rows(0, 10)).ok()) << "the same again: it has not heard the answer";
  EXPECT_EQ(send(sequence, rows(95, 101)).code, ErrorCode::kInvalidArgument);
  const auto corrupt = send(sequence, rows(10, 20), user.rows(sequence, 0, 10, 20), 12345);
  EXPECT_EQ(corrupt.code, ErrorCode::kCorrupt);
  EXPECT_NE(corrupt.message.find("layer 0, rows from 10: checksum"), std::string::npos);
  wire::Rows wrong = rows(10, 20);
  wrong.epoch = 7;
  EXPECT_EQ(send(sequence, wrong).code, ErrorCode::kStaleEpoch);
  wrong = rows(10, 20);
  wrong.layer = 2;
  EXPECT_EQ(send(sequence, wrong).code, ErrorCode::kInvalidArgument);
  wrong = rows(10, 20);
  ++wrong.sequence_id;
  EXPECT_EQ(send(sequence, wrong).code, ErrorCode::kPermissionDenied);
  wrong = rows(10, 20);
  wrong.count = 11;
  EXPECT_EQ(send(sequence, wrong, user.rows(sequence, 0, 10, 20)).code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused(pool, Refusal::kRepeated, 2), 2U);
  EXPECT_EQ(refused(pool, Refusal::kOutOfRange, 2), 2U);
  EXPECT_EQ(refused(pool, Refusal::kCorrupt, 1), 1U);
  EXPECT_EQ(refused(pool, Refusal::kStaleEpoch, 1), 1U);
  EXPECT_EQ(refused(pool, Refusal::kUnauthorized, 1), 1U);
  EXPECT_EQ(refused(pool, Refusal::kMalformed, 1), 1U);
  // Refused rows may be sent again, and then the prompt is complete.
  EXPECT_TRUE(send(sequence, rows(10, 100)).ok());
  EXPECT_TRUE(user.push(sequence, 1, 0, 100).empty());
  EXPECT_EQ(user.attend({{&sequence, 1, 0}}).reply.items.at(0), ErrorCode::kOk);
  // Too late: its pages may belong to another sequence by now.
  pool.free(sequence.info.id);
  EXPECT_EQ(send(sequence, rows(0, 10)).code, ErrorCode::kNotFound);
  EXPECT_EQ(refused(pool, Refusal::kUnknownSequence, 1), 1U);
  pool.expect_all_free();
}

TEST_P(ServiceRows, CorruptRepeatedAndLateOnesAreNeverRead) {
  const UserSequence sound = user.start(1, 100, 4);
  const auto expected = user.attend({{&sound, 1, 0}}).output;
  const UserSequence sequence = user.admit(1, 100, 4);  // with the same rows and queries
  const wire::Rows header = user.rows_header(sequence, 0, 0, 100);
  auto flipped = user.rows(sequence, 0, 0, 100);
  const std::uint32_t crc = wire::crc32c(flipped);
  flipped.at(1000) ^= std::byte{1};
  EXPECT_EQ(send(sequence, header, flipped, crc).code, ErrorCode::kCorrupt);
  const auto early = user.attend({{&sequence, 1, 0}}).reply;
  EXPECT_EQ(early.items.at(0), ErrorCode::kFailedPrecondition);
  EXPECT_NE(early.message.find("0 of 200"), std::string::npos) << early.message;
  for (const int layer : {0, 1}) EXPECT_TRUE(user.push(sequence, layer, 0, 100).empty());
  EXPECT_EQ(send(sequence, user.rows_header(sequence, 0, 0, 100), flipped).code,
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(user.attend({{&sequence, 1, 0}}).output, expected);
  pool.free(sequence.info.id);
  const UserSequence next = user.start(1, 100, 4);  // in the pages of the one before
  EXPECT_EQ(send(sequence, header, flipped).code, ErrorCode::kNotFound);
  EXPECT_EQ(user.attend({{&next, 1, 0}}).output, expected);
}

TEST_P(ServiceRows, NothingIsAnsweredBeforeAnIntroduction) {
  const UserSequence sequence = user.admit(1, 100, 4);
  RawClient stranger;
  const PeerId peer = stranger.connect(pool.address(0), sequence.info);
  stranger.send(peer, wire::MessageType::kRows, encode(user.rows_header(sequence, 0, 0, 100)),
                user.rows(sequence, 0, 0, 100));
  EXPECT_FALSE(stranger.wait_disconnect(peer).ok());
}

TEST_P(ServiceRows, RandomMessagesDoNoHarm) {
  const UserSequence sequence = user.start(1, 100, 4);
  std::mt19937 random(3);
  for (std::uint16_t type = 0; type < 48; ++type) {
    RawClient client;
    const PeerId peer = client.enter(pool.address(0), user.shape(), sequence.info);
    // Forty-eight connections may take longer than a lease.
    EXPECT_EQ(user.control(sequence, wire::ControlOp::kRenew, 0).items.at(0).code, ErrorCode::kOk);
    for (const std::size_t size : {0, 1, 17, 300}) {
      std::vector<std::byte> header(size);
      for (auto& byte : header) byte = static_cast<std::byte>(random());
      client.send(peer, static_cast<wire::MessageType>(type), header,
                  std::vector<std::byte>(2 * size));
    }
  }
  EXPECT_EQ(user.attend({{&sequence, 1, 0}}).reply.items.at(0), ErrorCode::kOk);
}

INSTANTIATE_TEST_SUITE_P(Transports, ServiceRows,
                         testing::Values(TransportChoice::kTcp, TransportChoice::kUcx),
                         [](const auto& info) {
                           return std::string(transport_choice_name(info.param));
                         });

/// Holds back the ends of row transfers until the next message of another type.
class Holder final : public TransportHandler {
 public:
  TransportHandler* inner = nullptr;
  void on_open(PeerId peer, const Proven& who) override { inner->on_open(peer, who); }
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override {
    auto landing = inner->on_message(peer, type, header, payload_bytes);
    if (type != static_cast<std::uint16_t>(wire::MessageType::kRows)) {
      for (const auto& done : std::exchange(held_, {})) done();
    } else if (landing) {
      landing->done = [this, done = landing->done](const Status& status) {
        held_.push_back([done, status] { done(status); });
      };
    }
    return landing;
  }
  void on_disconnect(PeerId peer, const Status& reason) override {
    inner->on_disconnect(peer, reason);
  }

 private:
  std::vector<std::function<void()>> held_;
};

TEST(ServiceRowsInFlight, PagesOfAFreedSequenceWaitForTheEndOfItsTransfers) {
  Holder holder;
  ServicePool pool(1, small_options(), [&](TransportHandler& data_plane) -> TransportHandler& {
    holder.inner = &data_plane;
    return holder;
  });
  PoolUser user(pool);
  const UserSequence sequence = user.admit(1, 100, 4);
  const PeerId peer = user.peer(0, sequence);
  const std::uint64_t request = user.client.send_rows(peer, user.rows_header(sequence, 0, 0, 100),
                                                      user.rows(sequence, 0, 0, 100));
  // Its header has been taken when a second transfer of the same rows is refused.
  EXPECT_EQ(user.client
                .wait_rows(user.client.send_rows(peer, user.rows_header(sequence, 0, 0, 100),
                                                 user.rows(sequence, 0, 0, 100)))
                .outcome.code,
            ErrorCode::kUnavailable);
  pool.free(sequence.info.id);
  EXPECT_EQ(pool.held_pages(), 2);  // promised pages were freed at once
  (void)user.control(sequence, wire::ControlOp::kRenew, 0);
  EXPECT_EQ(user.client.wait_rows(request).outcome.code, ErrorCode::kNotFound);
  pool.expect_all_free();
}

}  // namespace
}  // namespace tributary::test
