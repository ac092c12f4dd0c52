#include "comm/mesh/mesh_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tributary::mesh {
namespace {

MeshBlock block(std::uint64_t number, CollectiveKind kind = CollectiveKind::kAllGather) {
  return {.group = 1, .number = number, .kind = static_cast<std::uint8_t>(kind)};
}

void arrive(MeshGroup& group, int from, std::uint64_t number, std::size_t bytes, int value) {
  std::ranges::fill(group.place(from, block(number), bytes), static_cast<std::byte>(value));
  group.arrived(from, number);
}

void expect_malformed(MeshGroup& group, int from, const MeshBlock& wrong, const std::string& text) {
  const Status status = status_of([&] { (void)group.place(from, wrong, 8); });
  EXPECT_EQ(status.code(), ErrorCode::kMalformedInput);
  EXPECT_THAT(status.message(), testing::HasSubstr(text));
}

TEST(MeshGroup, KeepsTheBlocksOfThisCallAndOfTheNext) {
  MeshGroup group(3);
  EXPECT_FALSE(group.has(2, 1));
  arrive(group, 2, 2, 5, 22);  // it may overtake the first
  arrive(group, 2, 1, 3, 21);
  arrive(group, 1, 1, 4, 11);
  EXPECT_TRUE(group.has(2, 1));
  EXPECT_EQ(group.block(2, 1).size(), 3U);
  EXPECT_EQ(group.block(1, 1)[3], std::byte{11});
  group.release(1);
  EXPECT_FALSE(group.has(2, 1));
  EXPECT_TRUE(group.has(2, 2));
  EXPECT_EQ(group.block(2, 2)[4], std::byte{22});
  arrive(group, 2, 3, 1, 23);
  EXPECT_EQ(group.block(2, 2)[4], std::byte{22});
}

TEST(MeshGroup, ABlockIsThereWhenItHasArrivedWhole) {
  MeshGroup group(2);
  (void)group.place(1, block(1, CollectiveKind::kBroadcast), 100);
  EXPECT_FALSE(group.has(1, 1));
  group.arrived(1, 1);
  EXPECT_TRUE(group.has(1, 1));
  EXPECT_EQ(group.kind(1, 1), CollectiveKind::kBroadcast);
  (void)group.place(1, block(2), 0);  // nothing of it is to come
  EXPECT_TRUE(group.has(1, 2));
  EXPECT_TRUE(group.block(1, 2).empty());
}

TEST(MeshGroup, RefusesWhatCannotComeNow) {
  MeshGroup group(2);
  expect_malformed(group, 1, block(0), "block of call 0, expected 1 or 2");
  expect_malformed(group, 1, block(3), "block of call 3, expected 1 or 2");
  arrive(group, 1, 1, 8, 1);
  expect_malformed(group, 1, block(1), "second block of call 1");
  group.release(1);
  expect_malformed(group, 1, block(1), "block of call 1, expected 2 or 3");
  MeshBlock unknown = block(2);
  unknown.kind = 3;
  expect_malformed(group, 1, unknown, "block of kind 3, expected 0 .. 2");
  EXPECT_FALSE(group.has(1, 2));
}

TEST(MeshGroup, TheFirstCauseStays) {
  MeshGroup group(2);
  group.end({ErrorCode::kDeadlineExceeded, "late"}, 3);
  group.end({ErrorCode::kPoolFull, "full"}, 3, true);
  EXPECT_EQ(group.cause().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_FALSE(group.told());
  MeshGroup other(2);
  other.end({ErrorCode::kPoolFull, "full"}, 3, true);
  other.end({ErrorCode::kDeadlineExceeded, "late"}, 3);
  EXPECT_EQ(other.cause().code(), ErrorCode::kPoolFull);
  EXPECT_TRUE(other.told());
}

TEST(MeshGroup, AFailureEndsNoCallBeforeIts) {
  MeshGroup group(3);
  EXPECT_TRUE(group.ends(1).ok());
  group.end({ErrorCode::kPoolFull, "full"}, 3, true);
  EXPECT_TRUE(group.ends(2).ok());
  EXPECT_EQ(group.ends(3).code(), ErrorCode::kPoolFull);
  EXPECT_EQ(group.ends(4).code(), ErrorCode::kPoolFull);
  group.end({ErrorCode::kDeadlineExceeded, "late"}, 2, true);
  EXPECT_EQ(group.ends(2).code(), ErrorCode::kPoolFull);
  EXPECT_TRUE(group.ends(1).ok());
}

}  // namespace
}  // namespace tributary::mesh
