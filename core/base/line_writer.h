// Writes lines for people to a stream that may have no reader: a write never waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace tributary {

/// May be called from any thread. A line that the stream does not accept at once is dropped and
/// counted. Before the next line that it accepts, another line says how many were dropped.
class LineWriter {
 public:
  /// Uses the descriptor no longer than its owner keeps it open.
  explicit LineWriter(int fd);

  /// Adds the newline. Cuts a line of more than kMaxBytes: a pipe takes so many at once or none.
  void write(std::string_view line);
  /// The number of dropped lines since the start.
  [[nodiscard]] std::uint64_t dropped() const;

  static constexpr std::size_t kMaxBytes = 4'000;

 private:
  [[nodiscard]] bool try_write(std::string_view line) const;

  int fd_;
  bool is_socket_;  // as systemd's journal is
  mutable std::mutex mutex_;
  std::uint64_t dropped_ = 0;
  std::uint64_t untold_ = 0;  // dropped since the last line that was written and not yet reported
};

/// The writer of this process.
[[nodiscard]] LineWriter& stderr_lines();

}  // namespace tributary
