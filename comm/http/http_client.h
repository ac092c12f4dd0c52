// A blocking HTTP client with deadlines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/http/http_message.h"
#include "comm/http/url.h"
#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary {

/// Another process sent an invalid response: kMalformedInput or kTooLarge that our own input did
/// not cause.
class AnswerError : public Error {
 public:
  explicit AnswerError(const std::string& message, ErrorCode code = ErrorCode::kMalformedInput)
      : Error(code, message) {}
};

struct HttpClientConfig {
  Url url;  // its path is a prefix of every request's path
  std::string bearer_token;
  std::string certificate_authority;  // PEM file; empty: the system's authorities
  std::size_t max_response_bytes = std::size_t{16} << 20;
};

/// Keeps its connection between requests. Used by one thread at a time.
class HttpClient {
 public:
  /// Throws kIo if no descriptors are left.
  explicit HttpClient(HttpClientConfig config);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Sends one request and returns the response. A request on a kept connection that the server has
  /// closed is retried once. Throws kDeadlineExceeded, kUnavailable when nobody listens or the
  /// connection breaks, AnswerError for a response that is not HTTP or, with kTooLarge, is too
  /// long, kInvalidArgument for a path or a header that cannot be sent.
  [[nodiscard]] HttpResponse request(const std::string& method, const std::string& path,
                                     const std::string& body, Deadline deadline,
                                     const std::vector<HttpHeader>& headers = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
