// Lines for people, to a stream that perhaps nobody reads: writing one never waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace tributary {

/// From any thread. A line that the stream does not take now is dropped and counted; the next one
/// that it takes is preceded by a line that says how many.
class LineWriter {
 public:
  /// Keeps the descriptor open no longer than its owner does.
  explicit LineWriter(int fd);

  /// Adds the newline. A line of more than kMaxBytes is cut: a pipe takes so many at once or none.
  void write(std::string_view line);
  /// Lines, since the start.
  [[nodiscard]] std::uint64_t dropped() const;

  static constexpr std::size_t kMaxBytes = 4'000;

 private:
  [[nodiscard]] bool try_write(std::string_view line) const;

  int fd_;
  bool is_socket_;  // as systemd's journal is
  mutable std::mutex mutex_;
  std::uint64_t dropped_ = 0;
  std::uint64_t untold_ = 0;  // dropped since the last line that was written
};

/// The writer of this process.
[[nodiscard]] LineWriter& stderr_lines();

}  // namespace tributary
