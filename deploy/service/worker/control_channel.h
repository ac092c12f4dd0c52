// The interface between a pool and its control plane, whichever way they talk: over a WebSocket
// (control_link), or inside one process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

/// The pool, as the control plane's side calls it: on a thread of that side. Not after the channel
/// has gone.
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

/// Brings a pool that serves to its control plane. Called on rank 0.
using ConnectControl =
    std::function<std::unique_ptr<ControlChannel>(RegisterPool pool, ControlLinkHandlers handlers)>;

}  // namespace tributary
