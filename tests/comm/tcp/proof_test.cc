// A proof convinces only the side that it was made for, and only once.
#include "comm/tcp/proof.h"

#include <gtest/gtest.h>

#include <set>

#include "comm/wire/codec.h"

namespace tributary::tcp {
namespace {

constexpr Secret kSecret{1, 2, 3};

Transcript said(std::uint64_t id, std::uint8_t opening, std::uint8_t challenge) {
  return {.opening = {.id = id, .nonce = {opening}}, .challenge = {.nonce = {challenge}}};
}

}  // namespace

TEST(Proof, DiffersWithAllThatWasSaid) {
  std::set<wire::Mac> macs;
  for (const Secret& secret : {kSecret, Secret{}}) {
    for (const Transcript& t : {said(1, 2, 3), said(2, 2, 3), said(1, 3, 3), said(1, 2, 2)}) {
      macs.insert(client_proof(secret, t).mac);
      macs.insert(server_verdict(secret, t, ErrorCode::kOk).mac);
      macs.insert(server_verdict(secret, t, ErrorCode::kUnavailable).mac);
    }
  }
  EXPECT_EQ(macs.size(), 2 * 4 * 3);
}

TEST(Proof, IsTheSameOnBothSides) {
  EXPECT_EQ(client_proof(kSecret, said(1, 2, 3)).mac, client_proof(kSecret, said(1, 2, 3)).mac);
  EXPECT_NE(random_nonce(), random_nonce());
}

TEST(Proof, MessagesHaveTheirSizes) {
  EXPECT_EQ(wire::encode(Preamble{}).size(), Preamble::kBytes);
  EXPECT_EQ(wire::encode(Opening{}).size(), Opening::kBytes);
  EXPECT_EQ(wire::encode(Challenge{}).size(), Challenge::kBytes);
  EXPECT_EQ(wire::encode(Proof{}).size(), Proof::kBytes);
  EXPECT_EQ(wire::encode(Verdict{}).size(), Verdict::kBytes);
}

TEST(Proof, OthersAreToldFromOtherVersions) {
  EXPECT_TRUE(check_preamble({}).ok());
  EXPECT_EQ(check_preamble({.magic = Preamble::kMagic + 1}).code(), ErrorCode::kMalformedInput);
  EXPECT_EQ(check_preamble({.version = Preamble::kVersion + 1}).code(), ErrorCode::kUnsupported);
}

}  // namespace tributary::tcp
