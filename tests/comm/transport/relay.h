// A relay between a client and a server, on a port of its own. It forwards their bytes and may
// change them.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/transport/stranger.h"
#include "tests/loopback_listener.h"

namespace tributary::testing_support {

/// For one connection.
class Relay {
 public:
  /// Changes bytes from one side before they reach the other: `at` is the position of the first. If
  /// it shortens `bytes`, the connection ends there.
  using Change = std::function<void(bool to_server, std::size_t at, std::vector<std::byte>& bytes)>;

  explicit Relay(std::string server, Change change = {});
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return listener_.address(); }
  /// All bytes from the client so far, unchanged.
  [[nodiscard]] std::vector<std::byte> client_said();

 private:
  void run();
  void hand_on(const Stranger& from, const Stranger& to, bool to_server);

  const std::string server_;
  const Change change_;
  const test::LoopbackListener listener_;
  std::mutex mutex_;
  std::vector<std::byte> said_;
  std::thread thread_;
};

}  // namespace tributary::testing_support
