// The pool's connection to the control plane, on a thread of its own: registers, sends heartbeats,
// brings requests to the leader and its answers back, and connects again for as long as the pool
// runs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "comm/http/event_loop.h"
#include "comm/http/url.h"
#include "core/base/error.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

struct ControlLinkConfig {
  Url url;  // of the control plane; its path is not used
  std::string bearer_token;
  std::string certificate_authority;
  RegisterPool pool;     // what does not change while the pool runs
  bool signals = false;  // SIGINT and SIGTERM ask for the end of the pool
};

/// Called on the link's thread.
struct ControlLinkHandlers {
  std::function<bool(ToPool)> request;  // false: the leader is behind
  std::function<void(RegisterPool&)> describe;
  std::function<Heartbeat()> heartbeat;
  std::function<void()> terminate;             // a signal has come
  std::function<void(const Status&)> refused;  // and no retry will be accepted
  std::function<void(const std::string&)> log;
};

/// Where the leader's messages for the control plane go.
class ControlChannel {
 public:
  ControlChannel() = default;
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;
  virtual ~ControlChannel() = default;
  /// From any thread.
  virtual void tell(const FromPool& word) = 0;
};

class ControlLink final : public ControlChannel {
 public:
  ControlLink(ControlLinkConfig config, ControlLinkHandlers handlers);
  /// Ends the thread.
  ~ControlLink() override;

  /// Without a connection the message is dropped: the next registration has the whole state.
  void tell(const FromPool& word) override;

 private:
  class Impl;
  EventLoop loop_;
  std::unique_ptr<Impl> impl_;
  std::thread thread_;
};

}  // namespace tributary
