// The interface between a pool and its control plane, whichever way they talk: over a WebSocket
// (control_link), or inside one process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

/// The control plane's side calls the pool through these, on its own thread. Not after the channel
/// is gone.
struct ControlLinkHandlers {
  std::function<bool(ToPool)> request;  // false: the leader is behind
  std::function<void(RegisterPool&)> describe;
  std::function<Heartbeat()> heartbeat;
  std::function<void()> terminate;             // a signal has come
  std::function<void(const Status&)> refused;  // and no retry will be accepted
  std::function<void(const std::string&)> log;
};

/// The channel for the leader's messages to the control plane.
class ControlChannel {
 public:
  ControlChannel() = default;
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;
  virtual ~ControlChannel() = default;
  /// Any thread may call.
  virtual void tell(const FromPool& word) = 0;
};

/// Connects a pool that serves to its control plane. Called on rank 0.
using ConnectControl =
    std::function<std::unique_ptr<ControlChannel>(RegisterPool pool, ControlLinkHandlers handlers)>;

}  // namespace tributary
