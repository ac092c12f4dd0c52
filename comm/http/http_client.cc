#include "comm/http/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "comm/http/connector.h"
#include "comm/http/http_text.h"
#include "comm/http/io_context.h"
#include "core/base/quote.h"

namespace tributary {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

using Request = http::request<http::string_body>;
using Parser = http::response_parser<http::string_body>;

/// A connection and the bytes that were read ahead on it.
struct Connection {
  explicit Connection(Stream connected) : stream(std::move(connected)) {}
  Stream stream;
  beast::flat_buffer buffer;
};

/// A request in progress. Its handlers share it, so that a late handler still finds it.
struct Exchange : std::enable_shared_from_this<Exchange> {
  void write() {
    http::async_write(connection->stream, request,
                      [self = shared_from_this()](const error_code& error, std::size_t) {
                        if (error == asio::error::operation_aborted) return self->finish(error);
                        self->read();  // a server may refuse before it has the whole request
                      });
  }

  void read() {
    http::async_read(
        connection->stream, connection->buffer, parser,
        [self = shared_from_this()](const error_code& error, std::size_t) { self->finish(error); });
  }

  void finish(const error_code& error) {
    outcome = error;
    done = true;
  }

  std::shared_ptr<Connection> connection;
  Request request;
  Parser parser;
  error_code outcome;
  bool done = false;
};

}  // namespace

struct HttpClient::Impl {
  explicit Impl(HttpClientConfig with) : config(std::move(with)) {
    tls = tls_for(config.url, config.certificate_authority);
  }

  /// Runs until `done`, or throws and drops the connection.
  void run(const bool& done, Deadline deadline) {
    io.restart();
    while (!done && !deadline.expired()) {
      if (io.run_one_until(deadline.when()) == 0) break;
    }
    if (!done) {
      drop();
      fail(ErrorCode::kDeadlineExceeded, "{} did not answer in time", authority(config.url));
    }
  }

  void connect(Deadline deadline) {
    struct Outcome {
      std::optional<Stream> stream;
      Status status;
      bool done = false;
    };
    const auto outcome = std::make_shared<Outcome>();
    const auto connector = std::make_shared<Connector>(io, config.url, tls);
    connector->start([outcome](std::optional<Stream> stream, const Status& status) {
      if (stream.has_value()) outcome->stream.emplace(std::move(*stream));
      outcome->status = status;
      outcome->done = true;
    });
    try {
      run(outcome->done, deadline);
    } catch (const Error&) {
      connector->cancel();
      looks_up = true;
      throw;
    }
    outcome->status.throw_if_error();
    connection = std::make_shared<Connection>(std::move(*outcome->stream));
  }

  void drop() {
    if (connection != nullptr) connection->stream.close();
    connection = nullptr;
  }

  [[nodiscard]] std::shared_ptr<Exchange> exchange(const Request& request, Deadline deadline) {
    auto exchange = std::make_shared<Exchange>();
    exchange->connection = connection;
    exchange->request = request;
    exchange->parser.body_limit(config.max_response_bytes);
    exchange->parser.skip(request.method() == http::verb::head);
    exchange->write();
    run(exchange->done, deadline);
    return exchange;
  }

  HttpClientConfig config;
  TlsContext tls;
  IoContext context;
  asio::io_context& io = context.get();
  std::shared_ptr<Connection> connection;
  bool looks_up = false;  // perhaps: a name, beyond a call's deadline
};

namespace {

/// The connection ended before the first byte of the response: the server had closed it.
bool was_stale(const Exchange& exchange) {
  const error_code& error = exchange.outcome;
  return !exchange.parser.got_some() &&
         (error == http::error::end_of_stream || error == asio::error::eof ||
          error == asio::error::connection_reset || error == asio::error::broken_pipe ||
          error == asio::error::connection_aborted);
}

[[noreturn]] void fail_exchange(const error_code& error, const HttpClientConfig& config) {
  const std::string who = authority(config.url);
  if (error == http::error::body_limit) {
    throw AnswerError(
        fmt::format("the answer of {} has more than {} bytes", who, config.max_response_bytes),
        ErrorCode::kTooLarge);
  }
  const bool broken = error == http::error::end_of_stream || error == http::error::partial_message;
  if (!broken && error.category() == make_error_code(http::error::bad_method).category()) {
    throw AnswerError(fmt::format("the answer of {} is not HTTP: {}", who, error.message()));
  }
  // As a server of https ends a connection that does not begin with TLS.
  const bool other = error == http::error::end_of_stream && !config.url.tls;
  fail(ErrorCode::kUnavailable, "the connection with {} broke: {}{}", who, error.message(),
       other ? " before an answer: is its URL https://?" : "");
}

/// Throws kInvalidArgument for text that would end its line, such as a token with its newline.
Request make_request(const std::string& method, const std::string& path, const std::string& body,
                     const std::vector<HttpHeader>& headers, const HttpClientConfig& config) {
  std::string target = config.url.path;
  if (target.ends_with('/')) target.pop_back();
  target += path;
  const bool visible =
      std::all_of(target.begin(), target.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (!visible || !target.starts_with('/')) {
    fail(ErrorCode::kInvalidArgument, "path {} of a request is not valid", quote(target));
  }
  Request message;
  message.version(11);
  message.method_string(method);
  message.target(target);
  message.set(http::field::host, authority(config.url));
  message.set(http::field::user_agent, "tributary");
  if (!body.empty()) message.set(http::field::content_type, "application/json");
  std::vector<HttpHeader> all = headers;
  if (!config.bearer_token.empty())
    all.push_back({"Authorization", "Bearer " + config.bearer_token});
  for (const HttpHeader& header : all) {
    if (!is_header(header)) {
      fail(ErrorCode::kInvalidArgument, "header {} of a request contains a line break or the like",
           quote(header.name));
    }
    message.set(header.name, header.value);
  }
  message.body() = body;
  message.prepare_payload();
  return message;
}

HttpResponse to_response(http::response<http::string_body>& answer) {
  HttpResponse response;
  response.status = static_cast<int>(answer.result_int());
  response.content_type = std::string(answer[http::field::content_type]);
  response.body = std::move(answer.body());
  for (const auto& field : answer) {
    response.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  return response;
}

}  // namespace

HttpClient::HttpClient(HttpClientConfig config)
    : impl_(std::make_unique<Impl>(std::move(config))) {}
HttpClient::~HttpClient() {
  impl_->drop();
  if (!impl_->looks_up) return;
  // Asio waits for its thread that looks names up, which nobody can tell to end: nobody waits here.
  static_cast<void>(status_of([&] { std::thread([last = std::move(impl_)] {}).detach(); }));
}

HttpResponse HttpClient::request(const std::string& method, const std::string& path,
                                 const std::string& body, Deadline deadline,
                                 const std::vector<HttpHeader>& headers) {
  const Request message = make_request(method, path, body, headers, impl_->config);
  const bool kept = impl_->connection != nullptr;
  if (!kept) impl_->connect(deadline);
  auto exchange = impl_->exchange(message, deadline);
  if (kept && was_stale(*exchange)) {
    impl_->drop();
    impl_->connect(deadline);
    exchange = impl_->exchange(message, deadline);
  }
  if (exchange->outcome) {
    impl_->drop();
    fail_exchange(exchange->outcome, impl_->config);
  }
  if (!exchange->parser.keep_alive()) impl_->drop();
  return to_response(exchange->parser.get());
}

}  // namespace tributary
