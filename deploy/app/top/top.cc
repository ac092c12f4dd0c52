#include "deploy/app/top/top.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/http/http_client.h"
#include "core/base/deadline.h"
#include "core/base/error.h"
#include "deploy/app/meet/meet_service.h"
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

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): a signal handler has no other
volatile std::sig_atomic_t ended = 0;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

/// The alternate screen, with keys as they are typed: what was on the terminal comes back at the
/// end. SIGINT, SIGTERM and SIGHUP are such an end.
class Screen {
 public:
  Screen() {
    struct sigaction action {};
    action.sa_handler = [](int) { ended = 1; };  // without SA_RESTART: it ends a wait
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &action, nullptr);
    has_keys_ = tcgetattr(STDIN_FILENO, &before_) == 0;
    if (has_keys_) {
      termios keys = before_;
      keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    show("\033[?1049h\033[?25l\033[H");
  }
  ~Screen() {
    show("\033[?25h\033[?1049l");
    if (has_keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void draw(const std::vector<std::string>& lines) {
    winsize size{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1;
    rows_ = known ? size.ws_row : 24U;
    const std::size_t columns = known && size.ws_col > 0 ? size.ws_col : 80U;
    std::string out = "\033[H";
    for (const std::string& line : fit_lines(lines, rows_, columns, first_)) {
      out += (out.size() > 3 ? "\r\n" : "") + line + "\033[K";
    }
    show(out + "\033[J");
  }

  /// Waits for a key, which may scroll, a signal or the time. False if this is the end.
  [[nodiscard]] bool wait(Time until) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now())
            .count();
    pollfd key{.fd = has_keys_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
    if (poll(&key, 1, static_cast<int>(std::max<std::int64_t>(0, left))) == 1) {
      std::array<char, 16> typed{};
      const ssize_t bytes = read(STDIN_FILENO, typed.data(), typed.size());
      if (bytes <= 0) has_keys_ = false;  // the terminal has gone
      scroll({typed.data(), static_cast<std::size_t>(std::max<ssize_t>(0, bytes))});
    }
    return ended == 0;
  }

 private:
  void scroll(std::string_view keys) {
    const std::size_t page = rows_ > 2 ? rows_ - 2 : 1;
    const auto back = [&](std::size_t lines) { first_ -= std::min(first_, lines); };
    if (keys.find('q') != std::string_view::npos) ended = 1;
    if (keys == "\033[A" || keys == "k") back(1);
    if (keys == "\033[B" || keys == "j") ++first_;
    if (keys == "\033[5~") back(page);
    if (keys == "\033[6~" || keys == " ") first_ += page;
  }

  static void show(const std::string& text) {
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  termios before_{};
  bool has_keys_ = false;
  std::size_t rows_ = 24;
  std::size_t first_ = 0;  // line on top
};

void watch(const TopOptions& options, Source& source, TierSample before) {
  Screen screen;
  std::vector<std::string> lines = top_lines(options.url, before, before);
  for (;;) {
    const auto next =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(options.interval_ms);
    do {
      screen.draw(lines);
      if (!screen.wait(next)) return;
    } while (std::chrono::steady_clock::now() < next);
    try {
      TierSample now = source.sample();
      lines = top_lines(options.url, before, now);
      before = std::move(now);
    } catch (const Error& error) {
      // The control plane may be restarting: the last picture stays, and the error stands above it.
      if (lines.front().starts_with("NO ANSWER")) lines.erase(lines.begin());
      lines.insert(lines.begin(), fmt::format("NO ANSWER: {}", error.what()));
    }
  }
}

}  // namespace

void top(const TopOptions& options) {
  ServiceOptions service;
  service.url = options.url;
  service.token_file = options.token_file;
  service.certificate_authority = options.certificate_authority;
  meet_service(service);
  Source source(options);
  const TierSample before = source.sample();
  if (!options.once && isatty(STDOUT_FILENO) == 1) return watch(options, source, before);
  std::this_thread::sleep_for(std::chrono::milliseconds(options.interval_ms));
  for (const std::string& line : top_lines(options.url, before, source.sample())) {
    fmt::print("{}\n", line);
  }
}

}  // namespace tributary
