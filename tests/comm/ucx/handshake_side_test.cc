// Neither side's contact is used before its proof; no message is taken out of its turn.
#include "comm/ucx/handshake_side.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/comm/transport/transport_endpoint.h"
#include "tests/core/base/expect_error.h"

namespace tributary::testing_support {
namespace {

using SecretOf = std::function<std::optional<Secret>(std::uint64_t)>;
using ucx::HandshakeSide;

const SecretOf kKnowsFive = [](std::uint64_t id) {
  return id == 5 ? std::optional(Secret{42}) : std::nullopt;
};

ucx::Contact contact(std::uint64_t label) {
  return {.label = label, .address = test_bytes(20 + label, label)};
}

HandshakeSide client(const Secret& secret = {42}, std::uint64_t id = 5) {
  return HandshakeSide(tributary::Introduction{.id = id, .secret = secret}, contact(1));
}
HandshakeSide server(const SecretOf& secret_of = kKnowsFive) {
  return {secret_of, contact(2)};
}

ErrorCode code_of_taking(HandshakeSide& side, std::span<const std::byte> message) {
  return code_of([&] { static_cast<void>(side.take(message)); });
}

}  // namespace

TEST(HandshakeSide, BothLearnTheOthersContact) {
  for (const bool open : {false, true}) {
    const SecretOf none;
    HandshakeSide connecting = open ? client({}) : client();
    HandshakeSide accepting = open ? server(none) : server();
    const auto challenge = accepting.take(connecting.opening());
    EXPECT_FALSE(challenge.contact);
    const auto introduction = connecting.take(challenge.reply);
    EXPECT_FALSE(introduction.contact);
    const auto proven = accepting.take(introduction.reply);
    ASSERT_TRUE(proven.contact);
    EXPECT_TRUE(proven.reply.empty());
    EXPECT_EQ(proven.contact->label, 1);
    EXPECT_EQ(proven.contact->address, contact(1).address);
    EXPECT_TRUE(accepting.done());
    const auto known = connecting.take(accepting.answer());
    ASSERT_TRUE(known.contact);
    EXPECT_EQ(known.contact->address, contact(2).address);
    EXPECT_TRUE(connecting.done());
  }
}

TEST(HandshakeSide, WhoDoesNotKnowTheSecretIsRefused) {
  for (auto connecting : {client({41}), client({}), client({42}, 6), client({}, 6)}) {
    HandshakeSide accepting = server();
    const auto said = connecting.take(accepting.take(connecting.opening()).reply);
    EXPECT_EQ(code_of_taking(accepting, said.reply), ErrorCode::kPermissionDenied);
    EXPECT_FALSE(accepting.done());
  }
}

TEST(HandshakeSide, AServerThatDoesNotKnowTheSecretIsNotBelieved) {
  HandshakeSide connecting = client();
  const SecretOf any = [](std::uint64_t) { return std::optional(Secret{1}); };
  HandshakeSide accepting = server(any);
  static_cast<void>(connecting.take(accepting.take(connecting.opening()).reply));
  EXPECT_EQ(code_of_taking(connecting, accepting.answer()), ErrorCode::kPermissionDenied);
}

TEST(HandshakeSide, AnotherContactThanTheProvenOneIsRefused) {
  HandshakeSide connecting = client();
  HandshakeSide accepting = server();
  const auto said = connecting.take(accepting.take(connecting.opening()).reply);
  auto introduction = std::get<ucx::Introduction>(ucx::decode(said.reply));
  for (const bool label : {true, false}) {
    auto changed = introduction;
    if (label) {
      changed.contact.label ^= 1;
    } else {
      changed.contact.address.back() ^= std::byte{1};
    }
    EXPECT_EQ(code_of_taking(accepting, ucx::encode(changed)), ErrorCode::kPermissionDenied);
  }
  EXPECT_EQ(code_of_taking(accepting, ucx::encode(introduction)), ErrorCode::kOk);
  auto answer = std::get<ucx::Introduction>(ucx::decode(accepting.answer()));
  ++answer.contact.label;
  EXPECT_EQ(code_of_taking(connecting, ucx::encode(answer)), ErrorCode::kPermissionDenied);
}

TEST(HandshakeSide, AProofIsWorthNothingAgainOrSentBack) {
  HandshakeSide connecting = client();
  HandshakeSide accepting = server();
  const auto said = connecting.take(accepting.take(connecting.opening()).reply);
  HandshakeSide later = server();
  static_cast<void>(later.take(connecting.opening()));
  EXPECT_EQ(code_of_taking(later, said.reply), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of_taking(connecting, said.reply), ErrorCode::kPermissionDenied);
}

TEST(HandshakeSide, MessagesHaveTheirTurn) {
  const auto opening = client().opening();
  const auto challenge = ucx::encode(proof::Challenge{});
  const auto introduction = ucx::encode(ucx::Introduction{.contact = contact(3), .mac = {}});
  const auto refusal = ucx::encode(ucx::Refusal{});
  for (const auto& message : {challenge, introduction, refusal}) {
    HandshakeSide accepting = server();
    EXPECT_EQ(code_of_taking(accepting, message), ErrorCode::kMalformedInput);
  }
  HandshakeSide opened = server();
  static_cast<void>(opened.take(opening));
  for (const auto& message : {opening, challenge, refusal}) {
    EXPECT_EQ(code_of_taking(opened, message), ErrorCode::kMalformedInput);
  }
  for (const auto& message : {opening, introduction}) {
    HandshakeSide connecting = client();
    EXPECT_EQ(code_of_taking(connecting, message), ErrorCode::kMalformedInput);
  }
  HandshakeSide challenged = client();
  static_cast<void>(challenged.take(challenge));
  EXPECT_EQ(code_of_taking(challenged, challenge), ErrorCode::kMalformedInput);
}

TEST(HandshakeSide, ARefusalIsHeardAtAnyTime) {
  HandshakeSide connecting = client();
  const auto full = ucx::encode(ucx::Refusal{});
  const auto denied = ucx::encode(ucx::Refusal{.reason = ErrorCode::kPermissionDenied});
  EXPECT_EQ(code_of_taking(connecting, full), ErrorCode::kPoolFull);
  HandshakeSide accepting = server();
  static_cast<void>(connecting.take(accepting.take(connecting.opening()).reply));
  EXPECT_EQ(code_of_taking(connecting, denied), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code_of_taking(connecting, full), ErrorCode::kPoolFull);
}

TEST(HandshakeSide, TalkingToItselfIsNoConnection) {
  HandshakeSide connecting = client();
  EXPECT_EQ(code_of_taking(connecting, connecting.opening()), ErrorCode::kUnavailable);
}

}  // namespace tributary::testing_support
