#include "deploy/app/bench/bench_options.h"

#include <fmt/format.h>

#include <string_view>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "deploy/options/option_values.h"

namespace tributary {

void read_value(const std::string& text, BenchStep& step) {
  constexpr int kMaxBatch = 4096;
  constexpr std::int64_t kMaxContext = std::int64_t{1} << 24;
  const std::size_t by = text.find('x');
  if (by == std::string::npos) {
    fail(ErrorCode::kInvalidArgument, "{} is not BATCHxCONTEXT, as in 8x4096", quote(text));
  }
  const std::string_view parts = text;
  // One row of the context is the new token's.
  step = {.batch = parse_number<int>(parts.substr(0, by), 1, kMaxBatch),
          .context = parse_number<std::int64_t>(parts.substr(by + 1), 2, kMaxContext)};
}

std::string value_text(const BenchStep& step) {
  return fmt::format("{}x{}", step.batch, step.context);
}

}  // namespace tributary
