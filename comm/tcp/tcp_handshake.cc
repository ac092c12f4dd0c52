#include "comm/tcp/tcp_handshake.h"

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/http/tls_errors.h"
#include "comm/tcp/preamble.h"
#include "comm/transport/proof.h"
#include "comm/wire/codec.h"

namespace tributary::tcp {
namespace {

/// The part that both sides share: reading and writing one message at a time, and the transcript.
/// It keeps itself alive.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Stream& stream, HandshakeDone done) : stream_(stream), done_(std::move(done)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  virtual ~Exchange() = default;

 protected:
  /// Call it first. Both sides vouch for their protocol, and for the TLS session that they see.
  void bind() {
    besides_ = wire::encode(Preamble{});
    const std::string session = stream_.binding();
    const auto bytes = std::as_bytes(std::span(session));
    besides_.insert(besides_.end(), bytes.begin(), bytes.end());
  }
  /// Reads one message and calls `then` with it.
  template <typename Message, typename Then>
  void read(Then then) {
    bytes_.resize(Message::kBytes);
    boost::asio::async_read(stream_, boost::asio::buffer(bytes_),
                            [self = shared_from_this(), this, then = std::move(then)](
                                const boost::system::error_code& error, std::size_t /*bytes*/) {
                              if (error) return end(gone(error));
                              proceed([&] { then(wire::decode<Message>(bytes_)); });
                            });
  }
  /// Writes messages as one and calls `then`.
  template <typename Then, typename... Messages>
  void write(Then then, const Messages&... messages) {
    bytes_.clear();
    (append(wire::encode(messages)), ...);
    boost::asio::async_write(stream_, boost::asio::buffer(bytes_),
                             [self = shared_from_this(), this, then = std::move(then)](
                                 const boost::system::error_code& error, std::size_t /*bytes*/) {
                               if (error) return end(gone(error));
                               proceed(then);
                             });
  }
  /// Runs a step; an exception from it ends the exchange.
  template <typename Step>
  void proceed(const Step& step) {
    if (const Status status = status_of(step); !status.ok()) end(status);
  }
  void end(const Status& status) { std::exchange(done_, nullptr)(status, {}); }
  void succeed(const Secret& secret) {
    std::exchange(done_, nullptr)(
        {}, {.id = said_.opening.id, .session = proof::session_of(secret, said_, besides_)});
  }

  proof::Transcript said_;
  std::vector<std::byte> besides_;

 private:
  void append(const std::vector<std::byte>& message) {
    bytes_.insert(bytes_.end(), message.begin(), message.end());
  }
  static Status gone(const boost::system::error_code& error) {
    // TLS 1.3 says so after its handshake.
    if (peer_refuses_certificate(error)) {
      return {ErrorCode::kPermissionDenied,
              fmt::format("it refuses our certificate: {}", error.message())};
    }
    return {ErrorCode::kUnavailable,
            error == boost::asio::error::eof ? "closed by the other side" : error.message()};
  }

  Stream& stream_;
  HandshakeDone done_;
  std::vector<std::byte> bytes_;  // of the message being read or written
};

class ConnectingExchange final : public Exchange {
 public:
  ConnectingExchange(Stream& stream, const Introduction& introduction, HandshakeDone done)
      : Exchange(stream, std::move(done)), secret_(introduction.secret) {
    said_.opening.id = introduction.id;
  }

  void start() {
    proceed([this] {
      bind();
      said_.opening.nonce = proof::random_nonce();
      write([this] { read<Preamble>([this](const Preamble& p) { on_preamble(p); }); }, Preamble{},
            said_.opening);
    });
  }

 private:
  void on_preamble(const Preamble& preamble) {
    check_preamble(preamble).throw_if_error();
    read<proof::Challenge>([this](const proof::Challenge& challenge) {
      said_.challenge = challenge;
      write(
          [this] {
            read<proof::Verdict>([this](const proof::Verdict& verdict) { on_verdict(verdict); });
          },
          proof::client_proof(secret_, said_, besides_));
    });
  }
  void on_verdict(const proof::Verdict& verdict) {
    if (verdict.outcome == ErrorCode::kPermissionDenied) {
      fail(ErrorCode::kPermissionDenied, "the secret of {} was refused", said_.opening.id);
    }
    const proof::Verdict expected =
        proof::server_verdict(secret_, said_, verdict.outcome, besides_);
    if (!wire::same_bytes(expected.mac, verdict.mac)) {
      fail(ErrorCode::kPermissionDenied, "it does not know the secret of {}", said_.opening.id);
    }
    if (verdict.outcome != ErrorCode::kOk) fail(verdict.outcome, "the connection was refused");
    succeed(secret_);
  }

  const Secret secret_;
};

class AcceptingExchange final : public Exchange {
 public:
  AcceptingExchange(Stream& stream, AcceptingSide side, HandshakeDone done)
      : Exchange(stream, std::move(done)), side_(std::move(side)) {}

  void start() {
    proceed([this] {
      bind();
      read<Preamble>([this](const Preamble& preamble) { on_preamble(preamble); });
    });
  }

 private:
  void on_preamble(const Preamble& preamble) {
    const Status status = check_preamble(preamble);
    if (status.code() == ErrorCode::kUnsupported) return refuse(status, Preamble{});
    status.throw_if_error();
    read<proof::Opening>([this](const proof::Opening& opening) { on_opening(opening); });
  }
  void on_opening(const proof::Opening& opening) {
    said_ = {.opening = opening, .challenge = {.nonce = proof::random_nonce()}};
    write([this] { read<proof::Proof>([this](const proof::Proof& given) { on_proof(given); }); },
          Preamble{}, said_.challenge);
  }
  void on_proof(const proof::Proof& given) {
    const std::uint64_t id = said_.opening.id;
    // An unknown id and a wrong secret get the same answer after the same time.
    const std::optional<Secret> known = side_.secret_of(id);
    const proof::Proof expected = proof::client_proof(known.value_or(Secret{}), said_, besides_);
    if (!wire::same_bytes(expected.mac, given.mac) || !known) {
      return refuse(
          {ErrorCode::kPermissionDenied, fmt::format("it does not know the secret of {}", id)},
          proof::Verdict{.outcome = ErrorCode::kPermissionDenied, .mac = {}});
    }
    const Status admitted = side_.admit(id);
    const proof::Verdict verdict = proof::server_verdict(*known, said_, admitted.code(), besides_);
    if (!admitted.ok()) return refuse(admitted, verdict);
    write([this, secret = *known] { succeed(secret); }, verdict);
  }
  template <typename Message>
  void refuse(const Status& reason, const Message& last) {
    write([this, reason] { end(reason); }, last);
  }

  const AcceptingSide side_;
};

}  // namespace

void shake_hands_as_client(Stream& stream, const Introduction& introduction, HandshakeDone done) {
  std::make_shared<ConnectingExchange>(stream, introduction, std::move(done))->start();
}

void shake_hands_as_server(Stream& stream, AcceptingSide side, HandshakeDone done) {
  std::make_shared<AcceptingExchange>(stream, std::move(side), std::move(done))->start();
}

}  // namespace tributary::tcp
