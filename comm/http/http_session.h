// One client's connection to the server. It handles one request at a time, under deadlines.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>

#include "comm/http/connection_set.h"
#include "comm/http/event_loop_impl.h"
#include "comm/http/http_server.h"
#include "comm/http/session_timer.h"
#include "comm/http/stream.h"

namespace tributary {

/// The state that the server shares with its sessions.
struct HttpService {
  HttpServerConfig config;
  std::shared_ptr<const HttpHandlers> handlers;  // null after the server is destroyed
  std::shared_ptr<LoopGate> gate;
  std::shared_ptr<ConnectionSet> connections = std::make_shared<ConnectionSet>();
  HttpTraffic traffic;
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(std::shared_ptr<HttpService> service, Stream stream, std::string remote);
  /// Does the handshake, then handles requests until one side closes the connection.
  void start();

 private:
  using Error = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void await_request();
  void read_header();
  void expire();
  void on_header(const Error& error);
  void read_body();
  void on_request(const Error& error);
  void call_handler(const HttpRequest& request);
  void upgrade(HttpRequest request);
  void refuse_reading(const Error& error);
  void refuse(int status, std::string_view code, std::string_view message);
  void answer(std::uint64_t exchange, HttpResponse response);
  void write(HttpResponse response, bool keep_alive);
  void finish();
  void abort();
  /// Called when the client is silent or does not read.
  void time_out();

  std::shared_ptr<HttpService> service_;
  Stream stream_;
  ConnectionSet::Slot slot_;
  SessionTimer timer_;
  std::string remote_;
  boost::beast::flat_buffer buffer_;  // may hold the start of the next requests
  std::optional<Parser> parser_;
  bool trusted_ = false;        // some request proved who sends it
  bool expired_ = false;        // the request missed its deadline
  bool head_ = false;           // a HEAD request: no body in the response
  std::uint64_t exchange_ = 0;  // number of the latest request
  bool awaiting_ = false;       // its handler has not answered yet
  std::string out_head_;
  std::string out_body_;
};

}  // namespace tributary
