// The bytes of messages, taken in parts of every size.
#include "comm/tcp/frame_writer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/tcp/frame_header.h"
#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::tcp {
namespace {

using testing_support::Completion;
using testing_support::test_bytes;

constexpr Time kNow{};

}  // namespace

TEST(FrameWriter, WritesTheSameInPartsOfEverySize) {
  const std::vector<std::byte> payload = test_bytes(1000, 1);
  const std::span<const std::byte> all(payload);
  for (const std::size_t part : {1, 15, 17, 400, 1'000'000}) {
    FrameWriter writer;
    std::vector<std::byte> expected;
    std::vector<Completion> sent(20);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const std::size_t cut = i * 7;
      const std::vector<std::byte> header = test_bytes(i, i);
      const auto bytes = i % 2 == 0 ? all : all.first(0);
      const auto frame = encode(FrameHeader{.payload_bytes = bytes.size(),
                                            .header_bytes = static_cast<std::uint32_t>(i),
                                            .type = static_cast<std::uint16_t>(i)});
      for (const auto& piece : {std::span<const std::byte>(frame), std::span(header), bytes}) {
        expected.insert(expected.end(), piece.begin(), piece.end());
      }
      OutgoingMessage message{.type = static_cast<std::uint16_t>(i),
                              .header = header,
                              .payload = {},
                              .sent = sent[i].callback()};
      if (!bytes.empty()) message.payload = {all.first(cut), all.first(0), all.subspan(cut)};
      writer.push(std::move(message), kNow);
    }
    std::vector<std::byte> written;
    while (!writer.empty()) {
      std::size_t taken = 0;
      for (const auto& buffer : writer.next()) {
        const std::span piece(static_cast<const std::byte*>(buffer.data()), buffer.size());
        const auto now = piece.first(std::min(piece.size(), part - taken));
        written.insert(written.end(), now.begin(), now.end());
        taken += now.size();
      }
      ASSERT_GT(taken, 0);
      writer.written(taken);
    }
    EXPECT_TRUE(written == expected) << "in parts of " << part;
    EXPECT_EQ(writer.bytes(), 0);
    for (const Completion& completion : sent) {
      EXPECT_EQ(completion.calls(), 1);
      EXPECT_TRUE(completion.wait().ok());
    }
  }
}

TEST(FrameWriter, SentIsCalledWithTheLastByte) {
  const std::vector<std::byte> payload = test_bytes(10, 1);
  FrameWriter writer;
  Completion sent;
  writer.push({.type = 1, .header = {}, .payload = {payload}, .sent = sent.callback()}, kNow);
  writer.written(FrameHeader::kBytes + 9);
  EXPECT_EQ(sent.calls(), 0);
  writer.written(1);
  EXPECT_TRUE(sent.wait().ok());
}

TEST(FrameWriter, StopGivesBackAllThatWaits) {
  const std::vector<std::byte> payload = test_bytes(10, 1);
  FrameWriter writer;
  std::vector<Completion> sent(3);
  for (Completion& completion : sent) {
    writer.push({.type = 1, .header = {}, .payload = {payload}, .sent = completion.callback()},
                kNow);
  }
  writer.written(FrameHeader::kBytes + 12);  // the first, and a part of the second
  writer.stop({ErrorCode::kUnavailable, "gone"});
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(writer.bytes(), 0);
  EXPECT_TRUE(sent[0].wait().ok());
  EXPECT_EQ(sent[1].wait().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(sent[2].wait().code(), ErrorCode::kUnavailable);
  for (const Completion& completion : sent) EXPECT_EQ(completion.calls(), 1);
}

}  // namespace tributary::tcp
