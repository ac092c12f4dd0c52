// Connects to a URL: name lookup, addresses, TLS.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/http/address_race.h"
#include "comm/http/stream.h"
#include "comm/http/url.h"
#include "core/base/error.h"

namespace tributary {

/// One attempt, in which the addresses of the host name race (AddressRace). The first socket that
/// is connected wins; the others are closed and have sent nothing.
class Connector : public std::enable_shared_from_this<Connector> {
 public:
  using Connected = std::function<void(std::optional<Stream>, const Status&)>;

  Connector(boost::asio::io_context& io, Url url, TlsContext tls);
  /// Calls `connected` once, with a stream or with kUnavailable and the reason, unless cancel()
  /// was called first.
  void start(Connected connected);
  void cancel();

 private:
  using Tcp = boost::asio::ip::tcp;
  using Error = boost::system::error_code;
  void connect(std::vector<Tcp::endpoint> endpoints);
  void race();
  void attempt(std::size_t address);
  void handshake(Tcp::socket socket);
  void finish(std::optional<Stream> stream, const Status& status);

  boost::asio::io_context& io_;
  Url url_;
  TlsContext tls_;  // null: plain
  Tcp::resolver resolver_;
  std::vector<Tcp::endpoint> endpoints_;
  AddressRace race_{0};
  boost::asio::steady_timer timer_;              // when the race goes on
  std::map<std::size_t, Tcp::socket> attempts_;  // in progress, by the endpoint's index
  Error last_error_;                             // of those that failed
  std::optional<Stream> stream_;
  Connected connected_;  // empty after it was called or cancelled
};

/// "HOST:PORT" for messages and for the Host header, with a V6 address in brackets.
[[nodiscard]] std::string authority(const Url& url);
/// The context for a URL: null for a plain one. Throws kInvalidArgument.
[[nodiscard]] TlsContext tls_for(const Url& url, const std::string& certificate_authority);

}  // namespace tributary
