#include "deploy/app/replay/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "core/base/line_writer.h"

namespace tributary {
namespace {

constexpr std::chrono::milliseconds kBarPause{100};
constexpr std::chrono::seconds kLinePause{10};

}  // namespace

Progress::Progress(std::FILE* terminal, std::int64_t total_tokens)
    : terminal_(terminal), total_(std::max<std::int64_t>(1, total_tokens)) {
  if (terminal_ == nullptr) next_ += kLinePause;
}

Progress::~Progress() {
  if (terminal_ == nullptr) return;
  std::fputs("\r\033[K", terminal_);
  std::fflush(terminal_);
}

void Progress::update(std::int64_t tokens, std::size_t running) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + (terminal_ == nullptr ? kLinePause : kBarPause);
  constexpr std::int64_t kWidth = 20;  // the line fits into 80 columns
  const auto filled = static_cast<std::size_t>(kWidth * tokens / total_);
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate = static_cast<double>(tokens) / std::max(seconds, 1e-3);
  const std::string left =
      tokens > 0 ? fmt::format("{:.0f} s left", static_cast<double>(total_ - tokens) / rate) : "";
  if (terminal_ == nullptr) {
    stderr_lines().write(fmt::format("tributary: {}% in {:.0f} s, {} of {} tokens, {} running, {}",
                                     100 * tokens / total_, seconds, tokens, total_, running,
                                     left.empty() ? "prompts are pushed" : left));
    return;
  }
  // Not fmt::print, which throws where the terminal has gone: a run is worth more than its bar.
  std::fputs(fmt::format("\r[{:<{}}] {:3}%  {} of {} tokens, {} running, {:.0f}/s, {}\033[K",
                         std::string(filled, '#'), kWidth, 100 * tokens / total_, tokens, total_,
                         running, rate, left)
                 .c_str(),
             terminal_);
  std::fflush(terminal_);
}

}  // namespace tributary
