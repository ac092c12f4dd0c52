// Sits between a client and a server of TLS with a certificate that the client trusts.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "tests/loopback_listener.h"

namespace tributary {

/// Each side speaks TLS with it alone. It hands on messages of `turns` bytes as they are, the first
/// from the client, the next from the server and so on, and then closes. For one connection.
class ManInTheMiddle {
 public:
  /// `server`: "127.0.0.1:PORT"; PEM files.
  ManInTheMiddle(std::string server, std::string certificate, std::string key,
                 std::vector<std::size_t> turns);
  ~ManInTheMiddle();
  ManInTheMiddle(const ManInTheMiddle&) = delete;
  ManInTheMiddle& operator=(const ManInTheMiddle&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return listener_.address(); }
  /// Messages so far.
  [[nodiscard]] std::size_t handed_on() const noexcept { return handed_on_; }

 private:
  void run();

  const std::string server_;
  const std::string certificate_, key_;
  const std::vector<std::size_t> turns_;
  const test::LoopbackListener listener_;
  std::atomic<std::size_t> handed_on_ = 0;
  std::thread thread_;
};

}  // namespace tributary
