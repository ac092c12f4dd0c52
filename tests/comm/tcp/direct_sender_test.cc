// Messages that their senders write to the socket themselves.
#include "comm/tcp/direct_sender.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "comm/tcp/frame_writer.h"
#include "comm/tcp/tcp_transport.h"
#include "tests/comm/transport/silent_handler.h"
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
  [[nodiscard]] Sent send(OutgoingMessage message) { return sender.send(message); }
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
  std::vector<std::byte> expected = encode_frame(message);
  expected.insert(expected.end(), payload.begin(), payload.end());
  EXPECT_EQ(sender.send(message), Sent::kWhole);
  EXPECT_EQ(arrived(), expected);
  EXPECT_EQ(sent.calls(), 1);
  EXPECT_TRUE(sender.take().empty());
}

TEST_F(DirectSenderTest, NothingOvertakesWhatIsLeft) {
  sender.open(sockets[0]);
  const OutgoingMessage too_much{.type = 1, .header = {}, .payload = {large}, .sent = {}};
  const OutgoingMessage small{.type = 2, .header = test_bytes(9, 1), .payload = {}, .sent = {}};
  EXPECT_EQ(send(too_much), Sent::kWaiting);
  while (!arrived().empty()) {  // room again
  }
  EXPECT_EQ(send(small), Sent::kWaiting);
  const std::vector<Unfinished> left = sender.take();
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].message.type, 1);
  EXPECT_GT(left[0].written, 0U);
  EXPECT_LT(left[0].written, frame_bytes(too_much));
  EXPECT_EQ(left[1].message.type, 2);
  EXPECT_EQ(left[1].written, 0U);
  sender.done(1);
  EXPECT_EQ(send(small), Sent::kWaiting);
  EXPECT_EQ(sender.take().size(), 1U);
  sender.done(2);
  EXPECT_EQ(send(small), Sent::kWhole);
}

TEST_F(DirectSenderTest, WritesOnlyWhatFitsTheLimitsAndAnOpenSocket) {
  const OutgoingMessage small{.type = 2, .header = test_bytes(9, 1), .payload = {}, .sent = {}};
  EXPECT_EQ(send(small), Sent::kWaiting);
  sender.done(1);
  sender.open(sockets[0]);
  const OutgoingMessage long_header{
      .type = 2, .header = test_bytes(config.max_header_bytes + 1, 1), .payload = {}, .sent = {}};
  EXPECT_EQ(send(long_header), Sent::kWaiting);
  sender.done(1);
  EXPECT_EQ(send(small), Sent::kWhole);
  sender.close();
  EXPECT_EQ(send(small), Sent::kClosed);
  sender.open(sockets[0]);  // too late
  EXPECT_EQ(send(small), Sent::kClosed);
  EXPECT_EQ(sender.take().size(), 2U);  // from before
}

/// Waits in message 1 until it may go on, and answers message 2 with more than a socket takes.
class AnsweringOnce final : public SilentHandler {
 public:
  explicit AnsweringOnce(const TransportConfig& config)
      : transport_(make_tcp_transport(config, *this)) {}

  [[nodiscard]] const std::string& address() const { return transport_->address(); }
  void go_on() { may_go_on_.set_value(); }
  /// How often the answer's `sent` had been called when the connection ended; -1: not in time.
  [[nodiscard]] int calls_at_disconnect() {
    auto calls = calls_at_disconnect_.get_future();
    return calls.wait_for(testing_support::kAmple) == std::future_status::ready ? calls.get() : -1;
  }

 private:
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> /*header*/,
                                    std::size_t /*payload_bytes*/) override {
    if (type == 1) may_go_on_.get_future().wait_for(testing_support::kAmple);
    if (type == 2) {
      transport_->send(peer,
                       {.type = 4, .header = {}, .payload = {answer_}, .sent = sent_.callback()});
    }
    return std::nullopt;
  }
  void on_disconnect(PeerId /*peer*/, const Status& /*reason*/) override {
    calls_at_disconnect_.set_value(sent_.calls());
  }

  const std::vector<std::byte> answer_ = test_bytes(std::size_t{64} << 20, 4);
  std::promise<void> may_go_on_;
  std::promise<int> calls_at_disconnect_;
  testing_support::Completion sent_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace

TEST(DirectSender, AMessageThatWasBegunEndsBeforeItsConnection) {
  TransportConfig config{.listen = "127.0.0.1:0"};
  config.max_header_bytes = 100;
  AnsweringOnce server(config);
  testing_support::Endpoint client(make_tcp_transport, {});
  const PeerId peer = client.transport().connect(server.address());
  testing_support::Completion sent;
  client.send(peer, 1, "", {}, sent.callback());
  EXPECT_TRUE(sent.wait_all_ok(1));
  // The server's next read ends with an error, and begins with what it answers.
  client.send(peer, 2, "");
  client.send(peer, 3, std::string(101, 'x'), {}, sent.callback());
  EXPECT_TRUE(sent.wait_all_ok(2));
  server.go_on();
  EXPECT_EQ(server.calls_at_disconnect(), 1);
  EXPECT_FALSE(client.wait_disconnect(peer).ok());
}

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
