#include "comm/ucx/handshake_side.h"

#include <utility>

namespace tributary::ucx {
namespace {

[[noreturn]] void unexpected() {
  fail(ErrorCode::kMalformedInput, "not the message that comes next");
}

}  // namespace

HandshakeSide::HandshakeSide(const tributary::Introduction& who, Contact ours)
    : ours_(std::move(ours)), secret_(who.secret) {
  said_.opening = {.id = who.id, .nonce = proof::random_nonce()};
}

HandshakeSide::HandshakeSide(const std::function<std::optional<Secret>(std::uint64_t)>& secret_of,
                             Contact ours)
    : secret_of_(&secret_of), ours_(std::move(ours)) {
  said_.challenge = {.nonce = proof::random_nonce()};
}

std::vector<std::byte> HandshakeSide::opening() const {
  return encode(said_.opening);
}

HandshakeSide::Step HandshakeSide::take(std::span<const std::byte> bytes) {
  return std::visit(
      [this](auto&& message) { return on_message(std::forward<decltype(message)>(message)); },
      decode(bytes));
}

HandshakeSide::Step HandshakeSide::on_message(const proof::Opening& opening) {
  // A socket that connects to a free port of its own machine can connect to itself.
  if (secret_of_ == nullptr && opening.nonce == said_.opening.nonce) {
    fail(ErrorCode::kUnavailable, "nobody else is there");
  }
  if (secret_of_ == nullptr || challenged_) unexpected();
  said_.opening = opening;
  challenged_ = true;
  return {.reply = encode(said_.challenge), .contact = {}};
}

HandshakeSide::Step HandshakeSide::on_message(const proof::Challenge& challenge) {
  if (secret_of_ != nullptr || challenged_) unexpected();
  said_.challenge = challenge;
  challenged_ = true;
  const wire::Mac mac = client_mac(*secret_, said_, ours_);
  return {.reply = encode(Introduction{.contact = ours_, .mac = mac}), .contact = {}};
}

HandshakeSide::Step HandshakeSide::on_message(Introduction introduction) {
  if (!challenged_ || done_) unexpected();
  const std::uint64_t id = said_.opening.id;
  const bool accepting = secret_of_ != nullptr;
  // An unknown id and a wrong secret get the same answer after the same time.
  if (accepting) secret_ = *secret_of_ ? (*secret_of_)(id) : Secret{};
  const auto expected = (accepting ? client_mac : server_mac)(secret_.value_or(Secret{}), said_,
                                                              introduction.contact);
  if (!wire::same_bytes(expected, introduction.mac) || !secret_) {
    fail(ErrorCode::kPermissionDenied, "it does not know the secret of {}", id);
  }
  done_ = true;
  return {.reply = {}, .contact = std::move(introduction.contact)};
}

HandshakeSide::Step HandshakeSide::on_message(const Refusal& refusal) const {
  if (secret_of_ != nullptr) unexpected();
  if (refusal.reason == ErrorCode::kPermissionDenied) {
    fail(refusal.reason, "the secret of {} was refused", said_.opening.id);
  }
  fail(refusal.reason, "all its places are taken");
}

Proven HandshakeSide::proven() const {
  return {.id = said_.opening.id,
          .session = proof::session_of(secret_.value_or(Secret{}), said_, {})};
}

std::vector<std::byte> HandshakeSide::answer() const {
  const wire::Mac mac = server_mac(secret_.value_or(Secret{}), said_, ours_);
  return encode(Introduction{.contact = ours_, .mac = mac});
}

}  // namespace tributary::ucx
