// A plain TCP socket that sends anything: for requests that no HTTP client would send.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

class RawClient {
 public:
  explicit RawClient(const std::string& address, int receive_buffer_bytes = 0);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  /// False when the other side has closed.
  bool send(std::string_view bytes) const;
  /// Whether a read would not wait.
  [[nodiscard]] bool readable() const;
  /// Reads up to the end of the connection.
  [[nodiscard]] std::string read_all() const;
  /// Reads until `count` copies of `mark` have arrived, or to the end.
  [[nodiscard]] std::string read_until(std::string_view mark, int count = 1) const;

 private:
  int fd_ = -1;
};

}  // namespace tributary
