// The listening socket of a transport.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

#include "core/base/error.h"

namespace tributary::tcp {

/// Used by the thread that runs the io_context, except in the constructor. Outlives its last
/// handler: after close(), until the io_context has no work left.
class TcpListener {
 public:
  struct Events {
    std::function<void(boost::asio::ip::tcp::socket)> connected;
    /// Called when a shortage stops accepting. Called once until somebody is accepted again.
    std::function<void(const Status&)> paused;
    /// Called when the socket has failed for good; no event follows.
    std::function<void(const Status&)> failed;
  };

  /// Binds. Throws kInvalidArgument if `listen` is not an address, kIo if it cannot be bound.
  TcpListener(boost::asio::io_context& io, const std::string& listen, Events events);

  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  void accept();
  void close();

 private:
  void on_error(const boost::system::error_code& error);
  void accept_later(const boost::system::error_code& why);

  const Events events_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  std::string address_;
  bool paused_ = false;
};

}  // namespace tributary::tcp
