#include "deploy/app/bench/bench_options.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

std::int64_t number(std::string_view text, std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > high) {
    fail(ErrorCode::kInvalidArgument, "{} is not a whole number from 1 to {}", quote(text), high);
  }
  return value;
}

}  // namespace

std::vector<BenchStep> parse_bench_steps(const std::string& text) {
  constexpr std::int64_t kMaxBatch = 4096;
  constexpr std::int64_t kMaxContext = std::int64_t{1} << 24;
  std::vector<BenchStep> steps;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view step = rest.substr(0, comma);
    const std::size_t by = step.find('x');
    if (by == std::string_view::npos) {
      fail(ErrorCode::kInvalidArgument, "{} is not BATCHxCONTEXT, as in 8x4096", quote(step));
    }
    const std::int64_t context = number(step.substr(by + 1), kMaxContext);
    // One row is the new token's.
    if (context < 2) {
      fail(ErrorCode::kInvalidArgument, "{}: a context has 2 tokens or more", quote(step));
    }
    steps.push_back(
        {.batch = static_cast<int>(number(step.substr(0, by), kMaxBatch)), .context = context});
    if (more) rest.remove_prefix(comma + 1);
  }
  return steps;
}

std::string flag_text(const std::vector<BenchStep>& steps) {
  std::string text;
  for (const BenchStep& step : steps) {
    text += fmt::format("{}{}x{}", text.empty() ? "" : ",", step.batch, step.context);
  }
  return text;
}

}  // namespace tributary
