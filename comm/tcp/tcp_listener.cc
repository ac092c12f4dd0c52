#include "comm/tcp/tcp_listener.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/http/stream.h"
#include "comm/tcp/tcp_address.h"

namespace tributary::tcp {
namespace {

using Acceptor = boost::asio::ip::tcp::acceptor;
using boost::system::error_code;

/// Pause in accepting when descriptors or memory run out, or the network has an error. Clients wait
/// in the system's backlog.
constexpr std::chrono::milliseconds kPause{100};

/// Descriptors that connections may not use: they are for files, and for connections that we make.
/// An eighth if there are few.
constexpr rlim_t kReserve = 64;

/// Whether the next descriptor would be one of the reserve. The system gives out the lowest one.
bool descriptors_short(int known) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const int next = fcntl(known, F_DUPFD_CLOEXEC, 0);
  if (next < 0) return true;
  static_cast<void>(::close(next));
  return static_cast<rlim_t>(next) + std::min(kReserve, limit.rlim_cur / 8) >= limit.rlim_cur;
}

/// Whether this error of accept(2) concerns the listening socket itself, not one connection, the
/// network or the process.
bool is_final(const error_code& error) {
  return error == boost::asio::error::bad_descriptor ||
         error == boost::asio::error::invalid_argument || error == boost::asio::error::not_socket ||
         error == boost::asio::error::operation_not_supported;
}

}  // namespace

TcpListener::TcpListener(boost::asio::io_context& io, const std::string& listen, Events events)
    : events_(std::move(events)), acceptor_(io), pause_(io) {
  const auto endpoint = parse_address(listen);
  error_code error;
  const auto check = [&] {
    if (error) fail(ErrorCode::kIo, "listen on '{}': {}", listen, error.message());
  };
  acceptor_.open(endpoint.protocol(), error);
  check();
  acceptor_.set_option(Acceptor::reuse_address(true), error);
  check();
  acceptor_.bind(endpoint, error);
  check();
  acceptor_.listen(Acceptor::max_listen_connections, error);
  check();
  const auto bound = acceptor_.local_endpoint(error);
  check();
  address_ = endpoint_text(bound);
}

void TcpListener::accept() {
  if (descriptors_short(acceptor_.native_handle())) {
    return accept_later(boost::asio::error::no_descriptors);
  }
  acceptor_.async_accept([this](const error_code& error, boost::asio::ip::tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) return on_error(error);
    paused_ = false;
    events_.connected(std::move(socket));
    accept();
  });
}

void TcpListener::on_error(const error_code& error) {
  if (is_final(error)) {
    close();
    return events_.failed(
        {ErrorCode::kIo,
         fmt::format("the socket that listens on {} has failed: {}", address_, error.message())});
  }
  if (error == boost::asio::error::connection_aborted) return accept();
  accept_later(error);
}

void TcpListener::accept_later(const error_code& why) {
  if (!std::exchange(paused_, true)) {
    events_.paused({ErrorCode::kUnavailable,
                    fmt::format("accepting on {} is paused: {}", address_, why.message())});
  }
  pause_.expires_after(kPause);
  pause_.async_wait([this](const error_code& error) {
    if (!error && acceptor_.is_open()) accept();
  });
}

void TcpListener::close() {
  error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
}

}  // namespace tributary::tcp
