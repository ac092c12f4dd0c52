// Progress of a run: a bar on a terminal, elsewhere a line now and then.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "core/base/deadline.h"

namespace tributary {

class Progress {
 public:
  /// Without a terminal it writes a line to stderr each 10 s.
  Progress(std::FILE* terminal, std::int64_t total_tokens);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void update(std::int64_t tokens, std::size_t running);

 private:
  std::FILE* terminal_;
  std::int64_t total_;
  Time begin_ = std::chrono::steady_clock::now();
  Time next_ = begin_;
};

}  // namespace tributary
