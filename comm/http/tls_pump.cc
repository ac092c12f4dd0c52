#include "comm/http/tls_pump.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/beast/core/buffers_suffix.hpp>
#include <new>
#include <utility>

namespace tributary {

namespace asio = boost::asio;

namespace {

/// Of plain bytes; the protocol allows no more.
constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
/// As much as FrameReader reads at once, and what stays in the second-level cache between OpenSSL
/// and the system.
constexpr std::size_t kRingRecords = 16;
constexpr std::size_t kRingBytes = kRingRecords * SSL3_RT_MAX_PACKET_SIZE;
/// A write of up to two rings leaves in parts: the peer decrypts one while the next is encrypted,
/// which takes 60 of 210 us from a layer of DeepSeek-V3 (411 KB, Zen 5). A longer one is faster in
/// whole rings, by a sixth.
constexpr std::size_t kPartRecords = 4;

}  // namespace

void TlsPump::Free::operator()(ssl_st* ssl) const noexcept {
  SSL_free(ssl);
}
void TlsPump::Free::operator()(bio_st* bio) const noexcept {
  BIO_free(bio);
}

TlsPump::TlsPump(Socket socket, TlsContext context)
    : context_(std::move(context)),
      socket_(std::move(socket)),
      ssl_(SSL_new(context_->native_handle())) {
  BIO* inner = nullptr;
  BIO* outer = nullptr;
  if (!ssl_ || BIO_new_bio_pair(&inner, kRingBytes, &outer, kRingBytes) != 1) {
    throw std::bad_alloc();
  }
  rings_.reset(outer);
  SSL_set_bio(ssl_.get(), inner, inner);
}

void TlsPump::read_some(const ReadBuffers& into, IoHandler handler) {
  read_.emplace(Read{.into = into, .done = std::move(handler)});
  turn();
}

void TlsPump::write_some(const WriteBuffers& from, IoHandler handler) {
  write_.emplace(Write{.from = from, .done = std::move(handler)});
  turn();
}

void TlsPump::handshake_as_server(Stream::Done done) {
  SSL_set_accept_state(ssl_.get());
  handshake_ = std::move(done);
  turn();
}

void TlsPump::handshake_as_client(const std::string& host, Stream::Done done) {
  handshake_ = std::move(done);
  SSL_set_connect_state(ssl_.get());
  if (!verify_host(ssl_.get(), host)) return end_handshake(asio::error::invalid_argument);
  turn();
}

std::string TlsPump::verification_error() {
  return verification_error_of(ssl_.get());
}

std::string TlsPump::binding() {
  return session_binding(ssl_.get());
}

void TlsPump::say_goodbye(Stream::Done done) {
  asio::post(socket_.get_executor(), [done = std::move(done)] { done({}); });
}

void TlsPump::shutdown_send() {
  const bool said = (SSL_get_shutdown(ssl_.get()) & SSL_SENT_SHUTDOWN) != 0;
  if (!failed_ && !said) SSL_shutdown(ssl_.get());
  ending_ = true;
  turn();
}

void TlsPump::turn() {
  if (handshake_ && !failed_) shake_hands();
  if (read_ && !failed_) decrypt();
  if (write_ && write_->taken == 0 && !failed_ && !unsent_) encrypt();
  send();
  if (sending_) return;  // the peer gets OpenSSL's reason before anybody here closes the socket
  const error_code error = failed_ ? failed_ : unsent_;
  if (handshake_ && error) end_handshake(error);
  if (read_ && failed_) end_read(failed_, 0);
  if (write_) end_write(error, error ? 0 : write_->taken);
  if (std::exchange(ending_, false)) StreamChannel::shutdown_send();
}

void TlsPump::shake_hands() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) return end_handshake({});
  if (const auto error = error_of(result)) {
    failed_ = *error;
  } else {
    receive();
  }
}

void TlsPump::decrypt() {
  std::size_t filled = 0;
  for (asio::mutable_buffer piece : read_->into) {
    while (piece.size() > 0) {
      std::size_t bytes = 0;
      ERR_clear_error();
      const int result = SSL_read_ex(ssl_.get(), piece.data(), piece.size(), &bytes);
      if (result == 1) {
        piece += bytes;
        filled += bytes;
        continue;
      }
      const auto error = error_of(result);
      if (error && *error != asio::error::eof) failed_ = *error;
      if (filled > 0) return end_read({}, filled);
      if (error == asio::error::eof) return end_read(*error, 0);
      return error ? void() : receive();
    }
  }
  end_read({}, filled);
}

/// A record takes the bytes of several pieces where one has too few: each costs the peer a pass
/// through OpenSSL, and 22 bytes.
void TlsPump::encrypt() {
  std::array<std::byte, kRecordBytes> joined;
  boost::beast::buffers_suffix<WriteBuffers> rest(write_->from);
  const bool is_long = asio::buffer_size(rest) > 2 * kRingBytes;
  const auto has_room = [this] {
    return BIO_ctrl_get_write_guarantee(SSL_get_wbio(ssl_.get())) >= SSL3_RT_MAX_PACKET_SIZE;
  };
  for (std::size_t left = is_long ? kRingRecords : kPartRecords; left > 0 && has_room(); --left) {
    if (rest.begin() == rest.end()) return;
    asio::const_buffer record = *rest.begin();
    if (record.size() < kRecordBytes) {
      record = asio::buffer(joined.data(), asio::buffer_copy(asio::buffer(joined), rest));
    }
    std::size_t bytes = 0;
    ERR_clear_error();
    const int result =
        SSL_write_ex(ssl_.get(), record.data(), std::min(record.size(), kRecordBytes), &bytes);
    if (result != 1) {
      if (const auto error = error_of(result)) failed_ = *error;
      return;
    }
    write_->taken += bytes;
    rest.consume(bytes);
  }
}

void TlsPump::receive() {
  if (std::exchange(receiving_, true)) return;
  char* into = nullptr;
  const int room = BIO_nwrite0(rings_.get(), &into);
  socket_.async_read_some(
      asio::buffer(into, static_cast<std::size_t>(std::max(room, 0))),
      [self = shared_from_this(), this](const error_code& error, std::size_t bytes) {
        on_received(error, bytes);
      });
}

void TlsPump::on_received(const error_code& error, std::size_t bytes) {
  receiving_ = false;
  char* filled = nullptr;
  BIO_nwrite(rings_.get(), &filled, static_cast<int>(bytes));
  if (error) {
    // Without OpenSSL's own end anybody on the way may have cut the stream.
    const error_code cut = asio::ssl::error::stream_truncated;
    const error_code ended = error == asio::error::eof ? cut : error;
    if (handshake_) end_handshake(ended);
    if (read_) end_read(ended, 0);
  }
  turn();
}

void TlsPump::send() {
  if (sending_) return;
  char* from = nullptr;
  const int bytes = BIO_nread0(rings_.get(), &from);
  if (bytes <= 0) return;
  sending_ = true;
  socket_.async_write_some(
      asio::buffer(from, static_cast<std::size_t>(bytes)),
      [self = shared_from_this(), this](const error_code& error, std::size_t sent) {
        on_sent(error, sent);
      });
}

void TlsPump::on_sent(const error_code& error, std::size_t bytes) {
  sending_ = false;
  char* sent = nullptr;
  BIO_nread(rings_.get(), &sent, static_cast<int>(bytes));
  if (error) {
    unsent_ = error;
    static_cast<void>(BIO_reset(SSL_get_wbio(ssl_.get())));
  }
  turn();
}

std::optional<boost::system::error_code> TlsPump::error_of(int result) const {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return std::nullopt;
    case SSL_ERROR_ZERO_RETURN:
      return asio::error::eof;
    case SSL_ERROR_SSL:
      return error_code(static_cast<int>(ERR_get_error()), asio::error::get_ssl_category());
    default:
      return asio::ssl::error::unspecified_system_error;
  }
}

void TlsPump::end_handshake(const error_code& error) {
  asio::post(socket_.get_executor(),
             [done = std::exchange(handshake_, nullptr), error] { done(error); });
}

void TlsPump::end_read(const error_code& error, std::size_t bytes) {
  asio::post(socket_.get_executor(),
             [done = std::move(read_->done), error, bytes]() mutable { done(error, bytes); });
  read_.reset();
}

void TlsPump::end_write(const error_code& error, std::size_t bytes) {
  asio::post(socket_.get_executor(),
             [done = std::move(write_->done), error, bytes]() mutable { done(error, bytes); });
  write_.reset();
}

}  // namespace tributary
