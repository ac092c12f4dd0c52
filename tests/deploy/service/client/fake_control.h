// A control plane that gives the answers that a test sets, over real HTTP.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/http/event_loop.h"
#include "comm/http/http_server.h"
#include "deploy/service/protocol/admission.h"

namespace tributary::test {

class FakeControl {
 public:
  FakeControl();
  ~FakeControl();

  FakeControl(const FakeControl&) = delete;
  FakeControl& operator=(const FakeControl&) = delete;

  [[nodiscard]] std::string url() const { return "http://" + server_.address(); }
  [[nodiscard]] std::vector<HttpRequest> requests();

  /// Called on the server's thread. Set before the first request.
  std::function<HttpResponse(const HttpRequest&)> answer;

 private:
  std::mutex mutex_;
  std::vector<HttpRequest> requests_;
  EventLoop loop_;
  HttpServer server_;
  std::thread thread_;
};

/// The tier's own form of an error.
[[nodiscard]] HttpResponse error_response(int status, const std::string& code);
/// Sequence 77 of pool `p`, ready.
[[nodiscard]] SequenceHandle sample_answer();

}  // namespace tributary::test
