// Frames from bytes that arrive in parts of every size, and what is refused.
#include "comm/tcp/frame_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "comm/tcp/frame_header.h"
#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::tcp {
namespace {

using testing_support::test_bytes;
using testing_support::to_bytes;

struct Message {
  std::uint16_t type = 0;
  std::vector<std::byte> header, payload;
};

std::vector<std::byte> bytes_of(const Message& message) {
  std::vector<std::byte> bytes =
      encode(FrameHeader{.payload_bytes = message.payload.size(),
                         .header_bytes = static_cast<std::uint32_t>(message.header.size()),
                         .type = message.type});
  bytes.insert(bytes.end(), message.header.begin(), message.header.end());
  bytes.insert(bytes.end(), message.payload.begin(), message.payload.end());
  return bytes;
}

/// A reader that records its messages and how their payloads ended.
class Reader {
 public:
  explicit Reader(std::size_t piece_bytes = 0) : piece_bytes_(piece_bytes) {}

  /// Feeds the bytes to the reader in parts of at most `part`.
  void say(std::span<const std::byte> bytes, std::size_t part) {
    while (!bytes.empty()) {
      const std::size_t now = boost::asio::buffer_copy(
          reader_.space(), boost::asio::buffer(bytes.data(), std::min(part, bytes.size())));
      ASSERT_GT(now, 0);
      reader_.filled(now);
      bytes = bytes.subspan(now);
    }
  }

  FrameReader& reader() { return reader_; }
  std::vector<Message> messages;
  std::vector<Status> done;  // of landings
  std::vector<std::byte> inspected;
  bool drop = false, wrong_size = false;

 private:
  std::optional<Landing> on_message(std::uint16_t type, std::span<const std::byte> header,
                                    std::size_t payload_bytes) {
    messages.push_back({type, {header.begin(), header.end()}, {}});
    if (drop || payload_bytes == 0) return std::nullopt;
    std::vector<std::byte>& payload = messages.back().payload;
    payload.resize(payload_bytes + (wrong_size ? 1 : 0));
    Landing landing{.pieces = {},
                    .done = [this](const Status& status) { done.push_back(status); },
                    .inspect =
                        [this](std::span<const std::byte> part) {
                          inspected.insert(inspected.end(), part.begin(), part.end());
                        }};
    for (std::span<std::byte> rest(payload); !rest.empty();) {
      const std::size_t bytes =
          std::min(piece_bytes_ == 0 ? rest.size() : piece_bytes_, rest.size());
      landing.pieces.push_back(rest.first(bytes));
      landing.pieces.emplace_back();  // an empty one
      rest = rest.subspan(bytes);
    }
    return landing;
  }

  const std::size_t piece_bytes_;
  const TransportConfig config_{.max_header_bytes = 100, .max_payload_bytes = 1'000'000};
  FrameReader reader_{
      config_, [this](std::uint16_t type, std::span<const std::byte> header, std::size_t bytes) {
        return on_message(type, header, bytes);
      }};
};

ErrorCode refused(std::span<const std::byte> bytes) {
  Reader reader;
  try {
    reader.say(bytes, bytes.size());
  } catch (const Error& error) {
    EXPECT_TRUE(reader.messages.empty());
    return error.code();
  }
  return ErrorCode::kOk;
}

}  // namespace

TEST(FrameReader, PartsOfEverySizeMakeTheSameMessages) {
  std::vector<Message> all;
  std::vector<std::byte> bytes;
  std::vector<std::byte> payloads;
  for (const std::size_t payload : {0, 1, 0, 8191, 8193, 0, 70'000, 600'000}) {
    all.push_back({.type = static_cast<std::uint16_t>(payload % 1000),
                   .header = test_bytes(payload % 101, 1),
                   .payload = test_bytes(payload, payload)});
    const auto more = bytes_of(all.back());
    bytes.insert(bytes.end(), more.begin(), more.end());
    payloads.insert(payloads.end(), all.back().payload.begin(), all.back().payload.end());
  }
  for (const std::size_t piece : {std::size_t{0}, std::size_t{5000}, std::size_t{100'000}}) {
    for (const std::size_t part : {std::size_t{1}, std::size_t{7}, std::size_t{16},
                                   std::size_t{4096}, std::size_t{40'000}, bytes.size()}) {
      SCOPED_TRACE(testing::Message() << "parts of " << part << ", pieces of " << piece);
      Reader reader(piece);
      reader.say(bytes, part);
      ASSERT_EQ(reader.messages.size(), all.size());
      for (std::size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(reader.messages[i].type, all[i].type);
        EXPECT_TRUE(reader.messages[i].header == all[i].header);
        EXPECT_TRUE(reader.messages[i].payload == all[i].payload);
      }
      EXPECT_TRUE(reader.inspected == payloads);
      EXPECT_EQ(reader.done.size(), 5);
      EXPECT_TRUE(std::ranges::all_of(reader.done, [](const Status& s) { return s.ok(); }));
      EXPECT_FALSE(reader.reader().in_frame());
      EXPECT_EQ(reader.reader().frames(), all.size());
    }
  }
}

TEST(FrameReader, LimitsAreRefusedBeforeTheirBytesCome) {
  const std::size_t bytes = FrameHeader::kBytes;
  EXPECT_EQ(refused(encode(FrameHeader{.header_bytes = 101})), ErrorCode::kTooLarge);
  EXPECT_EQ(refused(encode(FrameHeader{.header_bytes = UINT32_MAX})), ErrorCode::kTooLarge);
  EXPECT_EQ(refused(encode(FrameHeader{.payload_bytes = 1'000'001})), ErrorCode::kTooLarge);
  EXPECT_EQ(refused(encode(FrameHeader{.payload_bytes = UINT64_MAX})), ErrorCode::kTooLarge);
  EXPECT_EQ(refused(encode(FrameHeader{.mark = 0})), ErrorCode::kMalformedInput);
  EXPECT_EQ(refused(std::vector<std::byte>(bytes)), ErrorCode::kMalformedInput);
  EXPECT_EQ(refused(std::vector<std::byte>(bytes - 1)), ErrorCode::kOk);  // one byte is missing
}

TEST(FrameReader, StopGivesTheLandingBack) {
  const Message message{.type = 1, .header = {}, .payload = test_bytes(100'000, 1)};
  const auto bytes = bytes_of(message);
  Reader reader;
  reader.say(std::span(bytes).first(50'000), 9'000);
  EXPECT_TRUE(reader.reader().landing());
  EXPECT_TRUE(reader.reader().in_frame());
  EXPECT_TRUE(reader.done.empty());
  reader.reader().stop({ErrorCode::kUnavailable, "gone"});
  ASSERT_EQ(reader.done.size(), 1);
  EXPECT_EQ(reader.done.front().code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(reader.reader().landing());
  const auto before = reader.messages.front().payload;
  reader.say(std::span(bytes).subspan(50'000), 9'000);  // no memory is touched
  reader.say(bytes, 9'000);
  EXPECT_EQ(reader.messages.size(), 1);
  EXPECT_TRUE(reader.messages.front().payload == before);
  EXPECT_EQ(reader.done.size(), 1);
}

TEST(FrameReader, DroppedPayloadsAreSkipped) {
  for (const bool wrong_size : {false, true}) {
    const auto bytes = bytes_of({.type = 1, .header = {}, .payload = test_bytes(100'000, 1)});
    Reader reader;
    reader.drop = !wrong_size;
    reader.wrong_size = wrong_size;
    reader.say(bytes, 9'000);
    reader.say(bytes_of({.type = 2, .header = to_bytes("next"), .payload = {}}), 9'000);
    ASSERT_EQ(reader.messages.size(), 2);
    EXPECT_EQ(reader.messages.back().header, to_bytes("next"));
    EXPECT_EQ(reader.done.size(), wrong_size ? 1 : 0);
    if (wrong_size) {
      EXPECT_EQ(reader.done.front().code(), ErrorCode::kInternal);
    }
  }
}

}  // namespace tributary::tcp
