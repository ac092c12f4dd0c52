// A control plane in this process, on a thread of its own, and requests to it.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "comm/http/event_loop.h"
#include "comm/http/http_client.h"
#include "deploy/service/control/control.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

class ControlHarness {
 public:
  /// Options that tests want: any port of loopback, timeouts that no busy machine reaches.
  [[nodiscard]] static ControlOptions quick_options();

  explicit ControlHarness(const ControlOptions& options = quick_options());
  ~ControlHarness();
  ControlHarness(const ControlHarness&) = delete;
  ControlHarness& operator=(const ControlHarness&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] const std::string& health_address() const noexcept {
    return control_->health_address();
  }
  [[nodiscard]] HttpResponse request(const std::string& method, const std::string& path,
                                     const std::string& body = "",
                                     const std::vector<HttpHeader>& headers = {}) const;
  [[nodiscard]] HttpResponse admit(std::int64_t prompt_tokens, std::int64_t max_new_tokens,
                                   const std::string& key = "") const;
  [[nodiscard]] nlohmann::json cluster() const;
  /// Waits until `holds` is true of /v1/cluster; false after a minute.
  [[nodiscard]] bool wait_for(const std::function<bool(const nlohmann::json&)>& holds) const;
  /// Waits until the pool is in that state.
  [[nodiscard]] bool wait_for_state(const std::string& pool, const std::string& state) const;

 private:
  EventLoop loop_;
  std::unique_ptr<Control> control_;
  std::string address_;
  std::thread thread_;
};

/// The path of a sequence in the control plane's API.
[[nodiscard]] std::string path_of(SequenceId id);
/// The `code` of an error's body.
[[nodiscard]] std::string code_of_body(const HttpResponse& response);

}  // namespace tributary
