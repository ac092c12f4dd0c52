// Connects to a URL: name lookup, addresses, TLS.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "comm/http/stream.h"
#include "comm/http/url.h"
#include "core/base/error.h"

namespace tributary {

/// One attempt, which tries every address of the host name.
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
  void connect(const std::vector<Tcp::endpoint>& endpoints);
  void handshake();
  void finish(std::optional<Stream> stream, const Status& status);

  Url url_;
  TlsContext tls_;  // null: plain
  Tcp::resolver resolver_;
  Tcp::socket socket_;
  std::optional<Stream> stream_;
  Connected connected_;  // empty after it was called or cancelled
};

/// "HOST:PORT" for messages and for the Host header, with a V6 address in brackets.
[[nodiscard]] std::string authority(const Url& url);
/// The context for a URL: null for a plain one. Throws kInvalidArgument.
[[nodiscard]] TlsContext tls_for(const Url& url, const std::string& certificate_authority);

}  // namespace tributary
