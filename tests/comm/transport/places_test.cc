// Who has a place, who makes room, and who finds none.
#include "comm/transport/places.h"

#include <gtest/gtest.h>

#include <array>

namespace tributary {
namespace {

/// Takes a place, and returns who made room: -1 for nobody, -2 if there was none.
int take(Places& places, PeerId peer, std::uint64_t key) {
  const Places::Taken taken = places.take(peer, key);
  if (!taken.ok) return -2;
  return taken.gone ? static_cast<int>(*taken.gone) : -1;
}

TEST(Places, TheOldestOfAllMakesRoom) {
  Places places(3, 3);
  for (const PeerId peer : {1U, 2U, 3U}) EXPECT_EQ(take(places, peer, peer), -1);
  EXPECT_EQ(take(places, 4, 4), 1);
  places.settle(2);
  EXPECT_EQ(take(places, 5, 5), 3);
  places.settle(4);
  places.settle(5);
  EXPECT_EQ(take(places, 6, 6), -2);
  EXPECT_EQ(places.size(), 3U);
  places.leave(6);  // has none
  places.leave(2);
  EXPECT_EQ(take(places, 7, 7), -1);
  EXPECT_EQ(places.oldest(), 4U);
}

TEST(Places, WhoHasHisShareMakesRoomForHimself) {
  Places places(10, 2);
  EXPECT_EQ(take(places, 1, 5), -1);
  EXPECT_EQ(take(places, 2, 6), -1);
  EXPECT_EQ(take(places, 3, 6), -1);
  EXPECT_EQ(take(places, 4, 6), 2);
  places.settle(3);
  places.settle(4);
  EXPECT_EQ(take(places, 5, 6), -2);
  places.leave(3);
  EXPECT_EQ(take(places, 6, 6), -1);
  for (const PeerId peer : {7U, 8U, 9U}) EXPECT_EQ(take(places, peer, 0), -1);  // nobody's key
}

/// 4 keys with 3 of 12 places each, all of which have spoken, keep nobody out.
TEST(Places, WhoHasTheMostGivesUpOneToWhoHasLess) {
  Places places(12, 3);
  for (PeerId peer = 0; peer < 12; ++peer) {
    EXPECT_EQ(take(places, peer, 100 + peer / 3), -1);
    places.settle(peer);
  }
  const auto settled = [&](PeerId peer, std::uint64_t key) {
    const int gone = take(places, peer, key);
    places.settle(peer);
    return gone;
  };
  const Places::Taken taken = places.take(20, 7);
  EXPECT_TRUE(taken.ok);
  EXPECT_EQ(taken.gone, PeerId{0});
  EXPECT_EQ(taken.why,
            "no place was free for 7: all 12 are taken; 100 has 3 of them, the most, and gives one "
            "up");
  places.settle(20);
  EXPECT_EQ(settled(21, 8), 3);  // of 101
  EXPECT_EQ(settled(22, 7), 6);  // of 102: 7 gets its second
  EXPECT_EQ(settled(23, 7),
            -2);  // 103 has 3, 7 has 2: they would only change places
  EXPECT_EQ(settled(24, 100), -2);
  EXPECT_EQ(settled(25, 9), 9);  // of 103
  EXPECT_EQ(settled(26, 10), 20) << "each keeps one";
  EXPECT_EQ(places.size(), 12U);
}

/// Who comes again and again pushes his own out, not a newcomer that has yet to speak.
TEST(Places, WhoHasTheMostPushesNobodyOut) {
  Places places(4, 3);
  EXPECT_EQ(take(places, 1, 5), -1);  // has not spoken
  for (const PeerId peer : {2U, 3U, 4U}) EXPECT_EQ(take(places, peer, 6), -1);
  places.settle(2);
  EXPECT_EQ(take(places, 5, 7), 3) << "the oldest of 6 that has not spoken";
  places.settle(4);
  EXPECT_EQ(take(places, 6, 8), 2) << "6 has the most, though all of its have spoken";
  EXPECT_EQ(take(places, 7, 9), 1) << "each has one: the oldest that has not spoken";
}

TEST(Places, ThePoolsOwnGiveNothingUp) {
  Places places(3, 3);
  for (PeerId peer = 0; peer < 3; ++peer) {
    EXPECT_EQ(take(places, peer, 0), -1);
    places.settle(peer);
  }
  EXPECT_EQ(take(places, 5, 7), -2);
}

TEST(Places, AHostOfIpv6HasOneKey) {
  using V4 = std::array<std::uint8_t, 4>;
  using V6 = std::array<std::uint8_t, 16>;
  EXPECT_NE(address_key(V4{10, 0, 0, 1}), address_key(V4{10, 0, 0, 2}));
  EXPECT_EQ(address_key(V4{10, 0, 0, 1}),
            address_key(V6{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1}));
  EXPECT_EQ(address_key(V6{0x20, 1, 0, 0, 0, 0, 0, 7, 1}),
            address_key(V6{0x20, 1, 0, 0, 0, 0, 0, 7, 2}));
  EXPECT_NE(address_key(V6{0x20, 1, 0, 0, 0, 0, 0, 7}), address_key(V6{0x20, 1, 0, 0, 0, 0, 0, 8}));
  EXPECT_NE(address_key(V6{}), 0U);
}

TEST(Places, StrangersHaveAnEighthForAnAddress) {
  Places places = places_for_strangers({.max_strangers = 16});
  EXPECT_EQ(take(places, 1, 5), -1);
  EXPECT_EQ(take(places, 2, 5), -1);
  EXPECT_EQ(take(places, 3, 5), 1);
}

}  // namespace
}  // namespace tributary
