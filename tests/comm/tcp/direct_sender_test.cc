// Messages that their senders write to the socket themselves.
#include "comm/tcp/direct_sender.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "comm/tcp/frame_writer.h"
#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::tcp {
namespace {

using testing_support::test_bytes;

class DirectSenderTest : public testing::Test {
 protected:
  DirectSenderTest() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0); }
  ~DirectSenderTest() override {
    for (const int socket : sockets) ::close(socket);
  }
  /// What has been written.
  std::vector<std::byte> arrived() {
    std::vector<std::byte> all(std::size_t{8} << 20);
    const ssize_t bytes = ::recv(sockets[1], all.data(), all.size(), MSG_DONTWAIT);
    all.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
    return all;
  }

  TransportConfig config;
  DirectSender sender{config};
  std::array<int, 2> sockets{-1, -1};
  const std::vector<std::byte> large = test_bytes(std::size_t{4} << 20, 3);
};

TEST_F(DirectSenderTest, WritesWholeFrames) {
  sender.open(sockets[0]);
  const std::vector<std::byte> payload = test_bytes(1000, 1);
  testing_support::Completion sent;
  OutgoingMessage message{
      .type = 7,
      .header = test_bytes(20, 2),
      .payload = {std::span(payload).first(300), std::span(payload).subspan(300)},
      .sent = sent.callback()};
  EXPECT_TRUE(sender.send(message));
  std::vector<std::byte> expected = encode_frame(message);
  expected.insert(expected.end(), payload.begin(), payload.end());
  EXPECT_EQ(arrived(), expected);
  EXPECT_EQ(sent.calls(), 1);
  EXPECT_TRUE(sender.take().empty());
}

TEST_F(DirectSenderTest, NothingOvertakesWhatIsLeft) {
  sender.open(sockets[0]);
  const OutgoingMessage too_much{.type = 1, .header = {}, .payload = {large}, .sent = {}};
  const OutgoingMessage small{.type = 2, .header = test_bytes(9, 1), .payload = {}, .sent = {}};
  EXPECT_FALSE(sender.send(too_much));
  while (!arrived().empty()) {  // room again
  }
  EXPECT_FALSE(sender.send(small));
  const std::vector<Unfinished> left = sender.take();
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].message.type, 1);
  EXPECT_GT(left[0].written, 0U);
  EXPECT_LT(left[0].written, frame_bytes(too_much));
  EXPECT_EQ(left[1].message.type, 2);
  EXPECT_EQ(left[1].written, 0U);
  sender.done(1);
  EXPECT_FALSE(sender.send(small));
  EXPECT_EQ(sender.take().size(), 1U);
  sender.done(2);
  EXPECT_TRUE(sender.send(small));
}

TEST_F(DirectSenderTest, WritesOnlyWhatFitsTheLimitsAndAnOpenSocket) {
  const OutgoingMessage small{.type = 2, .header = test_bytes(9, 1), .payload = {}, .sent = {}};
  EXPECT_FALSE(sender.send(small));
  sender.done(1);
  sender.open(sockets[0]);
  const OutgoingMessage long_header{
      .type = 2, .header = test_bytes(config.max_header_bytes + 1, 1), .payload = {}, .sent = {}};
  EXPECT_FALSE(sender.send(long_header));
  sender.done(1);
  EXPECT_TRUE(sender.send(small));
  sender.close();
  EXPECT_FALSE(sender.send(small));
  sender.done(1);
  sender.open(sockets[0]);  // too late
  EXPECT_FALSE(sender.send(small));
}

}  // namespace

/// A rest goes on where the direct part has ended.
TEST(FrameWriter, TakesTheRestOfAMessage) {
  const std::vector<std::byte> payload = test_bytes(100, 1);
  const OutgoingMessage message{
      .type = 7, .header = test_bytes(20, 2), .payload = {payload}, .sent = {}};
  std::vector<std::byte> expected = encode_frame(message);
  expected.insert(expected.end(), payload.begin(), payload.end());
  for (std::size_t before = 0; before < expected.size(); ++before) {
    FrameWriter writer;
    writer.push(message, {}, before);
    std::vector<std::byte> rest(expected.begin(),
                                expected.begin() + static_cast<std::ptrdiff_t>(before));
    for (const auto& buffer : writer.next()) {
      const std::span piece(static_cast<const std::byte*>(buffer.data()), buffer.size());
      rest.insert(rest.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(rest, expected);
  }
}

}  // namespace tributary::tcp
