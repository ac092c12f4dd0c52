#include "deploy/predict/simulate/simulate_options.h"

#include "core/base/error.h"
#include "core/base/quote.h"
#include "deploy/options/option_values.h"

namespace tributary {

void read_value(const std::string& text, RateList& rates) {
  constexpr double kMaxRate = 1e6;
  RateList read;
  for (const std::string& part : parts_of(text)) {
    read.values.push_back(parse_number(part, 0.0, kMaxRate));
    if (read.values.back() == 0) {
      fail(ErrorCode::kInvalidArgument, "{} is not a rate above 0", quote(part));
    }
  }
  rates = read;
}

std::string value_text(const RateList& rates) {
  return value_text(rates.values);
}

}  // namespace tributary
