#include "deploy/replay/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace tributary {

Progress::Progress(bool enabled, std::int64_t total_tokens)
    : enabled_(enabled && isatty(STDERR_FILENO) == 1), total_(std::max<std::int64_t>(1, total_tokens)) {}

Progress::~Progress() {
  if (enabled_) fmt::print(stderr, "\r\033[K");
}

void Progress::update(std::int64_t tokens, std::size_t running) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  constexpr std::int64_t kWidth = 30;
  const auto filled = static_cast<std::size_t>(kWidth * tokens / total_);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  fmt::print(stderr, "\r[{:<{}}] {:3}%  {} of {} tokens, {} running, {:.0f} tokens/s ",
             std::string(filled, '#'), kWidth, 100 * tokens / total_, tokens, total_, running,
             static_cast<double>(tokens) / std::max(seconds, 1e-3));
  std::fflush(stderr);
}

}  // namespace tributary
