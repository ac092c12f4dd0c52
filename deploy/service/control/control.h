// The control plane as a whole: `tributary control`.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/http/event_loop.h"
#include "deploy/service/control/control_options.h"

namespace tributary {

/// Serves as long as it lives and the loop runs. Constructed and destroyed on the loop's thread, or
/// while the loop does not run.
class Control {
 public:
  /// Throws kInvalidArgument for options outside their bounds or that would expose the tier without
  /// a token, and kIo for files and addresses that cannot be used.
  Control(EventLoop& loop, const ControlOptions& options);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  /// The bound address: "ADDRESS:PORT".
  [[nodiscard]] const std::string& address() const noexcept;
  /// The address of the health checks' own server; empty without one.
  [[nodiscard]] const std::string& health_address() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs a control plane until SIGINT or SIGTERM; `ready` is called once it listens. Events go to
/// stderr, one line each.
void run_control(const ControlOptions& options,
                 const std::function<void(const std::string& address)>& ready = {});

}  // namespace tributary
