// The pool's connection to the control plane, on its own thread. It registers, sends heartbeats,
// passes requests to the leader and its answers back, and reconnects for as long as the pool runs.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "comm/http/event_loop.h"
#include "comm/http/url.h"
#include "core/base/error.h"
#include "deploy/service/worker/leader/control_channel.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

struct ControlLinkConfig {
  Url url;  // of the control plane; its path is not used
  std::string bearer_token;
  std::string certificate_authority;
  RegisterPool pool;     // what does not change while the pool runs
  bool signals = false;  // SIGINT and SIGTERM ask for the end of the pool
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

/// The control plane that the options name; reads its URL and token at once. Throws as parse_url()
/// and read_token_file(). `signals` as in ControlLinkConfig.
[[nodiscard]] ConnectControl connect_by_link(const WorkerOptions& options, bool signals);

}  // namespace tributary
