// A progress bar on stderr.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tributary {

class Progress {
 public:
  /// Not `enabled`: writes nothing.
  Progress(bool enabled, std::int64_t total_tokens);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void update(std::int64_t tokens, std::size_t running);

 private:
  bool enabled_;
  std::int64_t total_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point next_ = begin_;
};

}  // namespace tributary
