// The pump against OpenSSL itself, which reads and writes one record a call at the other end.
#include "comm/http/tls_pump.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/error.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <vector>

#include "comm/http/tls_context.h"
#include "tests/comm/http/test_certificates.h"

namespace tributary {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using boost::system::error_code;

/// Far beyond what anything here takes.
constexpr std::chrono::seconds kAmple{20};

std::vector<std::byte> some_bytes(std::size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i * 2654435761U >> 13U);
  return all;
}

/// The other end: a blocking connection. Calls end after kAmple.
class Plain {
 public:
  explicit Plain(SSL* ssl) : ssl_(ssl) {}
  [[nodiscard]] SSL* ssl() const { return ssl_; }
  /// One record, or what is left of one; nothing at an orderly end.
  [[nodiscard]] std::vector<std::byte> read() const {
    std::vector<std::byte> record(1 << 16);
    std::size_t bytes = 0;
    if (SSL_read_ex(ssl_, record.data(), record.size(), &bytes) != 1) {
      EXPECT_EQ(SSL_get_error(ssl_, 0), SSL_ERROR_ZERO_RETURN);
    }
    record.resize(bytes);
    return record;
  }
  [[nodiscard]] bool write(std::span<const std::byte> bytes) const {
    std::size_t written = 0;
    return SSL_write_ex(ssl_, bytes.data(), bytes.size(), &written) == 1;
  }

 private:
  SSL* ssl_;
};

class TlsPumpTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { certificates_ = std::make_unique<TestCertificates>(); }
  static void TearDownTestSuite() { certificates_.reset(); }

  /// Connects a pump with `peer`, which runs on a thread of its own.
  void connect(const std::function<void(const Plain&)>& peer) {
    Tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    const auto to = acceptor.local_endpoint();
    peer_ = std::async(std::launch::async, [peer, to] {
      asio::io_context io;
      Tcp::socket socket(io);
      socket.connect(to);
      const timeval patience{.tv_sec = kAmple.count(), .tv_usec = 0};
      setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      const TlsContext context = client_tls_context(certificates_->path("ca.pem"));
      const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context->native_handle()),
                                                          SSL_free);
      SSL_set_fd(ssl.get(), socket.native_handle());
      ASSERT_EQ(SSL_connect(ssl.get()), 1);
      peer(Plain(ssl.get()));
    });
    pump_ = std::make_shared<TlsPump>(
        acceptor.accept(),
        server_tls_context(certificates_->path("good.pem"), certificates_->path("good.key")));
    bool done = false;
    pump_->handshake_as_server([&](const error_code& error) {
      EXPECT_FALSE(error) << error.message();
      done = true;
    });
    run_until(done);
  }
  void TearDown() override { end(); }
  void end() {
    run_until([this] { return has_ended(); });
    pump_->close();
    io_.restart();
    io_.run();
  }
  [[nodiscard]] bool has_ended() const {
    return peer_.wait_for(std::chrono::milliseconds(0)) == std::future_status::ready;
  }

  void run_until(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + kAmple;
    while (!done() && std::chrono::steady_clock::now() < end) {
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(10));
    }
    ASSERT_TRUE(done()) << "not in time";
  }
  void run_until(const bool& done) {
    run_until([&done] { return done; });
  }
  /// Writes all bytes, as pieces of `piece` bytes, eight a call.
  void write(std::span<const std::byte> bytes, std::size_t piece, std::function<void()> done) {
    WriteBuffers pieces;
    auto rest = bytes;
    while (!rest.empty() && !pieces.full()) {
      const auto part = rest.first(std::min(piece, rest.size()));
      pieces.add({part.data(), part.size()});
      rest = rest.subspan(part.size());
    }
    pump_->write_some(pieces, IoHandler([=, this, done = std::move(done)](const error_code& error,
                                                                          std::size_t written) {
                        ASSERT_FALSE(error) << error.message();
                        ASSERT_GT(written, 0U);
                        if (written == bytes.size()) return done();
                        write(bytes.subspan(written), piece, done);
                      }));
  }
  /// Fills all bytes, into pieces of `piece` bytes.
  void read(std::span<std::byte> bytes, std::size_t piece, std::function<void()> done) {
    ReadBuffers pieces;
    auto rest = bytes;
    while (!rest.empty() && !pieces.full()) {
      const auto part = rest.first(std::min(piece, rest.size()));
      pieces.add({part.data(), part.size()});
      rest = rest.subspan(part.size());
    }
    pump_->read_some(pieces, IoHandler([=, this, done = std::move(done)](const error_code& error,
                                                                         std::size_t filled) {
                       ASSERT_FALSE(error) << error.message();
                       ASSERT_GT(filled, 0U);
                       if (filled == bytes.size()) return done();
                       read(bytes.subspan(filled), piece, done);
                     }));
  }
  /// The error that the next read ends with.
  [[nodiscard]] error_code end_of_reading() {
    std::array<std::byte, 64> bytes;
    ReadBuffers into;
    into.add(asio::buffer(bytes));
    error_code ended;
    bool done = false;
    pump_->read_some(into, IoHandler([&](const error_code& error, std::size_t) {
                       ended = error;
                       done = true;
                     }));
    run_until(done);
    return ended;
  }

  static std::unique_ptr<TestCertificates> certificates_;
  asio::io_context io_;
  std::shared_ptr<TlsPump> pump_;
  std::future<void> peer_;
};

std::unique_ptr<TestCertificates> TlsPumpTest::certificates_;

// Both directions at once, beyond the rings; the peer asks for new keys all the time.
TEST_F(TlsPumpTest, AllBytesArriveWhateverThePieces) {
  constexpr std::size_t kBytes = 3'000'000;
  for (const std::size_t piece :
       {std::size_t{999}, std::size_t{16'384}, std::size_t{73'728}, std::size_t{1'000'000}}) {
    connect([](const Plain& peer) {
      for (std::size_t heard = 0; heard < kBytes;) {
        const auto record = peer.read();
        ASSERT_FALSE(record.empty());
        heard += record.size();
        ASSERT_EQ(SSL_key_update(peer.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
        ASSERT_TRUE(peer.write(record));
      }
      EXPECT_TRUE(peer.read().empty());
    });
    const std::vector<std::byte> said = some_bytes(kBytes);
    std::vector<std::byte> heard(kBytes);
    bool written = false;
    bool echoed = false;
    write(said, piece, [&] { written = true; });
    read(heard, piece, [&] { echoed = true; });
    run_until(echoed);
    EXPECT_TRUE(written);
    EXPECT_TRUE(said == heard) << piece;
    pump_->shutdown_send();
    end();
  }
}

TEST_F(TlsPumpTest, SmallPiecesShareARecord) {
  connect([](const Plain& peer) {
    EXPECT_EQ(peer.read().size(), 8U * 1000);
    EXPECT_EQ(peer.read().size(), 16'384U);
    EXPECT_EQ(peer.read().size(), 8U * 3000 - 16'384);
  });
  const std::vector<std::byte> said = some_bytes(8 * 3000);
  bool first = false;
  bool second = false;
  write(std::span(said).first(8 * 1000), 1000, [&] { first = true; });
  run_until(first);
  write(said, 3000, [&] { second = true; });
  run_until(second);
}

// An end that OpenSSL vouches for, unlike one that anybody on the way may have made.
TEST_F(TlsPumpTest, AnEndOfSendingIsNoEndOfReading) {
  connect([](const Plain& peer) {
    while (!peer.read().empty()) {
    }
    EXPECT_EQ(SSL_get_shutdown(peer.ssl()), SSL_RECEIVED_SHUTDOWN);
    EXPECT_TRUE(peer.write(some_bytes(10)));
  });
  const std::vector<std::byte> said = some_bytes(100'000);
  bool written = false;
  write(said, said.size(), [&] { written = true; });
  run_until(written);
  pump_->shutdown_send();
  std::vector<std::byte> heard(10);
  bool read_all = false;
  read(heard, heard.size(), [&] { read_all = true; });
  run_until(read_all);
  EXPECT_EQ(heard, some_bytes(10));
  EXPECT_EQ(end_of_reading(), error_code(asio::ssl::error::stream_truncated));
}

TEST_F(TlsPumpTest, AnEndOfThePeerIsTold) {
  connect([](const Plain& peer) { SSL_shutdown(peer.ssl()); });
  EXPECT_EQ(end_of_reading(), error_code(asio::error::eof));
}

// A peer that nobody reads from has to wait: what is not asked for stays with the system.
TEST_F(TlsPumpTest, NothingIsReadAhead) {
  static constexpr std::size_t kBytes = 64U << 20;
  connect([](const Plain& peer) {
    const timeval brief{.tv_sec = 0, .tv_usec = 200'000};
    setsockopt(SSL_get_fd(peer.ssl()), SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof(brief));
    const std::vector<std::byte> block = some_bytes(16'384);
    std::size_t written = 0;
    while (written < kBytes && peer.write(block)) written += block.size();
    EXPECT_LT(written, kBytes);
  });
}

}  // namespace
}  // namespace tributary
