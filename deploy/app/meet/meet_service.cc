#include "deploy/app/meet/meet_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "comm/http/http_client.h"
#include "core/base/error.h"
#include "core/base/line_writer.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{4'000};  // with nobody who listens
constexpr milliseconds kPause{100};
constexpr milliseconds kSilence{2'000};

/// Throws AnswerError for another program's server. A proxy in front of a tier that is starting
/// says 502 to 504: the calls that follow wait for that.
void check_answer(const HttpResponse& answer, const std::string& url) {
  if (answer.status >= 502 && answer.status <= 504) return;
  const auto body =
      nlohmann::json::parse(answer.body, /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (body.is_object() && (body.contains("alive") || body.contains("error"))) return;
  const std::string_view type = answer.content_type;
  throw AnswerError(fmt::format("no Tributary answers at {}: GET /healthz: HTTP status {}{}{}", url,
                                answer.status, type.empty() ? "" : ", ",
                                type.empty() ? "" : quote(type)));
}

}  // namespace

void meet_service(const ServiceOptions& options) {
  const TierClientConfig client = client_config(options);
  HttpClient http({.url = parse_url(options.url),
                   .bearer_token = client.bearer_token,
                   .certificate_authority = client.certificate_authority});
  const auto start = std::chrono::steady_clock::now();
  const Deadline deadline = Deadline::after(milliseconds(options.call_timeout_ms));
  for (milliseconds wait = std::min(kSilence, milliseconds(options.call_timeout_ms));;) {
    try {
      return check_answer(http.request("GET", "/healthz", "", Deadline::after(wait)), options.url);
    } catch (const Error& error) {
      const bool silent = error.code() == ErrorCode::kDeadlineExceeded;
      const bool nobody = error.code() == ErrorCode::kUnavailable &&
                          std::chrono::steady_clock::now() - start < kPatience;
      if (deadline.expired() || !(silent || nobody)) throw;
      if (silent) {
        stderr_lines().write(fmt::format("tributary: no answer from {} yet; waiting", options.url));
        wait = milliseconds(options.call_timeout_ms);
      } else {
        std::this_thread::sleep_for(kPause);
      }
    }
  }
}

}  // namespace tributary
