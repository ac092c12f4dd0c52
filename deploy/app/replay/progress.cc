#include "deploy/app/replay/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace tributary {

Progress::Progress(std::FILE* terminal, std::int64_t total_tokens)
    : terminal_(terminal), total_(std::max<std::int64_t>(1, total_tokens)) {}

Progress::~Progress() {
  if (terminal_ == nullptr) return;
  std::fputs("\r\033[K", terminal_);
  std::fflush(terminal_);
}

void Progress::update(std::int64_t tokens, std::size_t running) {
  const auto now = std::chrono::steady_clock::now();
  if (terminal_ == nullptr || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  constexpr std::int64_t kWidth = 20;  // the line fits into 80 columns
  const auto filled = static_cast<std::size_t>(kWidth * tokens / total_);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  // Not fmt::print, which throws where the terminal has gone: a run is worth more than its bar.
  std::fputs(fmt::format("\r[{:<{}}] {:3}%  {} of {} tokens, {} running, {:.0f} tokens/s ",
                         std::string(filled, '#'), kWidth, 100 * tokens / total_, tokens, total_,
                         running, static_cast<double>(tokens) / std::max(seconds, 1e-3))
                 .c_str(),
             terminal_);
  std::fflush(terminal_);
}

}  // namespace tributary
