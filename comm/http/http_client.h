// One HTTP request and its answer, blocking, with a deadline.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/http/http_message.h"
#include "comm/http/url.h"
#include "core/base/deadline.h"

namespace tributary {

struct HttpClientConfig {
  Url url;  // path: in front of every request's
  std::string bearer_token;
  std::string certificate_authority;  // PEM file; empty: the system's
  std::size_t max_response_bytes = std::size_t{16} << 20;
};

/// Keeps its connection between requests. Not for use by two threads at once.
class HttpClient {
 public:
  explicit HttpClient(HttpClientConfig config);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Throws kDeadlineExceeded, kUnavailable when nobody listens or the connection breaks (a request
  /// on a kept connection that the server had closed is sent once more), kMalformedInput for an
  /// answer that is not HTTP, kTooLarge for one that is too long, kInvalidArgument for a path or a
  /// header that cannot be sent.
  [[nodiscard]] HttpResponse request(const std::string& method, const std::string& path,
                                     const std::string& body, Deadline deadline,
                                     const std::vector<HttpHeader>& headers = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
