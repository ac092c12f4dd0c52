#include "deploy/app/top/top.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "comm/http/http_client.h"
#include "core/base/error.h"
#include "deploy/app/top/tier_sample.h"
#include "deploy/app/top/top_text.h"
#include "deploy/service/client/service_options.h"
#include "deploy/service/protocol/json_object.h"

namespace tributary {
namespace {

/// A control plane answers from memory; one that takes longer is in trouble, and this shows it.
constexpr std::chrono::seconds kCallTimeout{5};

class Source {
 public:
  explicit Source(const TopOptions& options) : http_(config(options)) {}

  [[nodiscard]] TierSample sample() {
    const std::string cluster = get("/v1/cluster");
    return read_tier(cluster, get("/metrics"));
  }

 private:
  static HttpClientConfig config(const TopOptions& options) {
    ServiceOptions service;
    service.token_file = options.token_file;
    return {.url = parse_url(options.url),
            .bearer_token = client_config(service).bearer_token,
            .certificate_authority = options.certificate_authority};
  }

  std::string get(const std::string& path) {
    const HttpResponse answer =
        http_.request("GET", path, "", Deadline::after(std::chrono::seconds(kCallTimeout)));
    if (answer.status == 401 || answer.status == 403) {
      fail(ErrorCode::kPermissionDenied, "GET {}: status {}: --token-file has the tier's token",
           path, answer.status);
    }
    if (answer.status != 200) {
      fail(ErrorCode::kUnavailable, "GET {}: status {}", path, answer.status);
    }
    return answer.body;
  }

  HttpClient http_;
};

std::size_t terminal_rows() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1;
  // One row stays free for the cursor.
  return (known ? size.ws_row : std::size_t{24}) - 1;
}

/// Overwrites the last picture from the top left: no flicker, and nothing to restore at the end.
void draw(const std::vector<std::string>& lines, bool first) {
  std::string out = first ? "\033[2J\033[H" : "\033[H";
  for (const std::string& line : fit_lines(lines, terminal_rows())) out += line + "\033[K\r\n";
  fmt::print("{}\033[J", out);
  std::fflush(stdout);
}

void watch(const TopOptions& options, Source& source, TierSample before) {
  const std::chrono::milliseconds interval(options.interval_ms);
  std::vector<std::string> lines = top_lines(options.url, before, before);
  draw(lines, true);
  for (;;) {
    std::this_thread::sleep_for(interval);
    try {
      TierSample now = source.sample();
      lines = top_lines(options.url, before, now);
      before = std::move(now);
      draw(lines, false);
    } catch (const Error& error) {
      // The control plane may be restarting: the last picture stays, and the error stands above it.
      std::vector<std::string> shown = {fmt::format("NO ANSWER: {}", error.what())};
      shown.front().resize(std::min(shown.front().size(), kTopWidth));
      shown.insert(shown.end(), lines.begin(), lines.end());
      draw(shown, false);
    }
  }
}

}  // namespace

void top(const TopOptions& options) {
  Source source(options);
  const TierSample before = source.sample();
  if (!options.once && isatty(STDOUT_FILENO) == 1) watch(options, source, before);
  std::this_thread::sleep_for(std::chrono::milliseconds(options.interval_ms));
  for (const std::string& line : top_lines(options.url, before, source.sample())) {
    fmt::print("{}\n", line);
  }
}

}  // namespace tributary
