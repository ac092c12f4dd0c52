// A server that answers the first bytes of one connection with fixed bytes, and closes.
#pragma once

#include <string>
#include <thread>

namespace tributary {

class RawServer {
 public:
  explicit RawServer(std::string answer);
  ~RawServer();
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  int fd_ = -1;
  std::string address_;
  std::thread thread_;
};

}  // namespace tributary
