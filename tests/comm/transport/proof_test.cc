// A proof convinces only the side that it was made for, and only once.
#include "comm/transport/proof.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "comm/wire/codec.h"

namespace tributary::proof {
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
      for (const std::size_t bytes : {0, 1, 2, 117}) {
        const std::vector<std::byte> besides(bytes);
        macs.insert(client_proof(secret, t, besides).mac);
        macs.insert(server_verdict(secret, t, ErrorCode::kOk, besides).mac);
        macs.insert(server_verdict(secret, t, ErrorCode::kUnavailable, besides).mac);
      }
    }
  }
  EXPECT_EQ(macs.size(), 2 * 4 * 4 * 3);
}

TEST(Proof, IsTheSameOnBothSides) {
  EXPECT_EQ(client_proof(kSecret, said(1, 2, 3), {}).mac,
            client_proof(kSecret, said(1, 2, 3), {}).mac);
  EXPECT_NE(random_nonce(), random_nonce());
}

TEST(Proof, ASessionIsThatOfOneConnection) {
  const std::vector<std::byte> tls(32, std::byte{1});
  std::set<Session> sessions{session_of(kSecret, said(1, 2, 3), {})};
  EXPECT_FALSE(sessions.insert(session_of(kSecret, said(1, 2, 3), {})).second);
  EXPECT_TRUE(sessions.insert(session_of(kSecret, said(1, 2, 3), tls)).second);
  EXPECT_TRUE(sessions.insert(session_of(kSecret, said(1, 3, 3), {})).second);
  EXPECT_TRUE(sessions.insert(session_of(kSecret, said(1, 2, 2), {})).second);
  EXPECT_TRUE(sessions.insert(session_of({}, said(1, 2, 3), {})).second);
  // It is none of the proofs that a listener has seen.
  EXPECT_TRUE(sessions.insert(client_proof(kSecret, said(1, 2, 3), {}).mac).second);
  EXPECT_TRUE(
      sessions.insert(server_verdict(kSecret, said(1, 2, 3), ErrorCode::kOk, {}).mac).second);
}

TEST(Proof, OfAFurtherSecretIsThatOfOneSessionAndId) {
  std::set<FurtherProof> proofs{further_proof(kSecret, Session{1}, 1)};
  EXPECT_FALSE(proofs.insert(further_proof(kSecret, Session{1}, 1)).second);
  EXPECT_TRUE(proofs.insert(further_proof(kSecret, Session{1}, 2)).second);
  EXPECT_TRUE(proofs.insert(further_proof(kSecret, Session{2}, 1)).second);
  EXPECT_TRUE(proofs.insert(further_proof({}, Session{1}, 1)).second);
}

TEST(Proof, MessagesHaveTheirSizes) {
  EXPECT_EQ(wire::encode(Opening{}).size(), Opening::kBytes);
  EXPECT_EQ(wire::encode(Challenge{}).size(), Challenge::kBytes);
  EXPECT_EQ(wire::encode(Proof{}).size(), Proof::kBytes);
  EXPECT_EQ(wire::encode(Verdict{}).size(), Verdict::kBytes);
}

}  // namespace tributary::proof
