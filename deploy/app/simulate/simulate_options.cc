#include "deploy/app/simulate/simulate_options.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

template <typename Parse>
auto parse_list(std::string_view text, Parse parse) {
  std::vector<decltype(parse(text))> values;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    more = comma != std::string_view::npos;
    values.push_back(parse(text.substr(0, comma)));
    if (more) text.remove_prefix(comma + 1);
  }
  return values;
}

double parse_rate(std::string_view text) {
  constexpr double kMaxRate = 1e6;
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  if (error != std::errc() || end != text.data() + text.size() || !(rate > 0 && rate <= kMaxRate)) {
    fail(ErrorCode::kInvalidArgument, "{} is not a rate above 0 and up to {}", quote(text),
         kMaxRate);
  }
  return rate;
}

}  // namespace

std::vector<SpreadPolicy> parse_spread_list(const std::string& text) {
  return parse_list(text, parse_spread_policy);
}

std::string flag_text(const std::vector<SpreadPolicy>& policies) {
  std::string text;
  for (const SpreadPolicy policy : policies) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", spread_policy_name(policy));
  }
  return text;
}

RateList parse_rate_list(const std::string& text) {
  return {parse_list(text, parse_rate)};
}

std::string flag_text(const RateList& rates) {
  std::string text;
  for (const double rate : rates.values) text += fmt::format("{}{}", text.empty() ? "" : ",", rate);
  return text;
}

}  // namespace tributary
