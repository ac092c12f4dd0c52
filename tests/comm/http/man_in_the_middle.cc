#include "tests/comm/http/man_in_the_middle.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <utility>

namespace tributary {
namespace {

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
using Connection = std::unique_ptr<SSL, decltype(&SSL_free)>;

bool hand_on(SSL* from, SSL* to, std::size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::size_t done = 0;
  for (std::size_t at = 0; at < bytes; at += done) {
    if (SSL_read_ex(from, data.data() + at, bytes - at, &done) != 1) return false;
  }
  return SSL_write_ex(to, data.data(), bytes, &done) == 1;
}

}  // namespace

ManInTheMiddle::ManInTheMiddle(std::string server, std::string certificate, std::string key,
                               std::vector<std::size_t> turns)
    : server_(std::move(server)),
      certificate_(std::move(certificate)),
      key_(std::move(key)),
      turns_(std::move(turns)),
      thread_([this] { run(); }) {}

ManInTheMiddle::~ManInTheMiddle() {
  thread_.join();
}

void ManInTheMiddle::run() {
  const Context as_server(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  const Context as_client(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  SSL_CTX_use_certificate_chain_file(as_server.get(), certificate_.c_str());
  SSL_CTX_use_PrivateKey_file(as_server.get(), key_.c_str(), SSL_FILETYPE_PEM);
  const int client = listener_.accept();
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(server_.substr(server_.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(server, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  const Connection near(SSL_new(as_server.get()), SSL_free);
  const Connection far(SSL_new(as_client.get()), SSL_free);
  SSL_set_fd(near.get(), client);
  SSL_set_fd(far.get(), server);
  if (SSL_accept(near.get()) == 1 && SSL_connect(far.get()) == 1) {
    SSL* from = near.get();
    SSL* next = far.get();
    for (const std::size_t bytes : turns_) {
      if (!hand_on(from, next, bytes)) break;
      ++handed_on_;
      std::swap(from, next);
    }
  }
  ::close(client);
  ::close(server);
}

}  // namespace tributary
