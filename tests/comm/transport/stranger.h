// A plain TCP connection that sends whatever a test wants.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tributary::testing_support {

class Stranger {
 public:
  static constexpr std::chrono::milliseconds kBrief{100};

  /// Connects to "A.B.C.D:PORT". Gives up after `patience` if the other side does not read.
  explicit Stranger(const std::string& address, std::chrono::milliseconds patience = kBrief);
  /// A socket that is not connected yet.
  Stranger();
  void connect(const std::string& address, std::chrono::milliseconds patience = kBrief) const;
  /// Takes a connected socket, with ample patience.
  explicit Stranger(int fd);
  ~Stranger();
  Stranger(Stranger&& other) noexcept;
  Stranger& operator=(Stranger&&) = delete;

  /// Sends all bytes, unless the other side stops reading.
  void say(std::span<const std::byte> bytes) const;
  /// Closes the sending side; the other side can still be heard.
  void end_saying() const;
  /// Exactly `bytes` bytes, or fewer if the other side closes first.
  [[nodiscard]] std::vector<std::byte> hear(std::size_t bytes) const;
  /// How many bytes arrive before the other side closes. Fails the test if it does not close.
  [[nodiscard]] std::size_t hear() const;
  /// The next bytes, as many as arrive at once; none at the end.
  [[nodiscard]] std::vector<std::byte> hear_some() const;

 private:
  int fd_;
};

/// Bytes that are not a message of ours: noise, zeros, ones, HTTP, lengths that look sound.
[[nodiscard]] std::vector<std::vector<std::byte>> garbage(std::size_t bytes);
/// UCX's magic, the id 0, a length of 2^32 - 1: an assertion of UCX 1.13 fails on these 13.
[[nodiscard]] std::vector<std::byte> bytes_that_abort_ucx();

}  // namespace tributary::testing_support
