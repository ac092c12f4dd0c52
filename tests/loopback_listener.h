// A TCP socket that listens on the loopback, at a port that the system chose.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

namespace tributary::test {

class LoopbackListener {
 public:
  LoopbackListener() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    auto* address = reinterpret_cast<sockaddr*>(&at);
    if (bind(fd_, address, size) != 0 || listen(fd_, 4) != 0 ||
        getsockname(fd_, address, &size) != 0) {
      throw std::runtime_error("cannot listen");
    }
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  ~LoopbackListener() { close(fd_); }
  LoopbackListener(const LoopbackListener&) = delete;
  LoopbackListener& operator=(const LoopbackListener&) = delete;

  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  /// The next connection; -1 after end().
  [[nodiscard]] int accept() const { return accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC); }
  /// Ends an accept() that waits.
  void end() const { shutdown(fd_, SHUT_RDWR); }

 private:
  int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string address_;
};

}  // namespace tributary::test
