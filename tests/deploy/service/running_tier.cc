#include "tests/deploy/service/running_tier.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "comm/http/http_client.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {
namespace {

constexpr auto kStart = std::chrono::seconds(60);
constexpr auto kStop = std::chrono::seconds(20);
constexpr auto kPoll = std::chrono::milliseconds(20);

/// Reads the program's output until it shows the URL.
std::string read_url(int fd, Deadline deadline) {
  std::string text;
  std::smatch match;
  while (!std::regex_search(text, match, std::regex(R"(http://\S+:\d+)"))) {
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    if (deadline.expired()) throw std::runtime_error("no URL in: " + text);
    if (poll(&wait, 1, 100) <= 0) continue;
    std::array<char, 4096> part{};
    const ssize_t size = read(fd, part.data(), part.size());
    if (size <= 0) throw std::runtime_error("ended without an URL: " + text);
    text.append(part.data(), static_cast<std::size_t>(size));
  }
  return match.str();
}

}  // namespace

RunningTier::RunningTier(const std::vector<std::string>& flags) {
  const char* program = std::getenv("TRIBUTARY_PROGRAM");
  if (program == nullptr) throw std::runtime_error("TRIBUTARY_PROGRAM is not set");
  std::vector<std::string> arguments{program, "up", "--listen", "127.0.0.1:0"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const int error = posix_spawn(&pid_, program, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  output_ = ends[0];
  if (error != 0) throw std::runtime_error("posix_spawn of " + arguments[0]);
  const Deadline deadline = Deadline::after(kStart);
  url_ = read_url(output_, deadline);
  while (true) {
    try {
      if (http("GET", "/readyz").status == 200) return;
    } catch (const Error&) {  // not listening yet
    }
    if (deadline.expired()) throw std::runtime_error("the tier is not ready");
    std::this_thread::sleep_for(kPoll);
  }
}

RunningTier::~RunningTier() {
  kill(pid_, SIGTERM);
  const Deadline deadline = Deadline::after(kStop);
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (deadline.expired()) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(kPoll);
  }
  close(output_);
}

HttpResponse RunningTier::http(const std::string& method, const std::string& path,
                               const std::string& body) const {
  HttpClient client({.url = parse_url(url_), .bearer_token = {}, .certificate_authority = {}});
  return client.request(method, path, body, Deadline::after(std::chrono::seconds(20)),
                        {{"Content-Type", "application/json"}});
}

SequenceHandle RunningTier::admit(std::int64_t prompt_tokens, std::int64_t max_new_tokens) const {
  const HttpResponse answer = http("POST", "/v1/sequences",
                                   fmt::format(R"({{"prompt_tokens": {}, "max_new_tokens": {}}})",
                                               prompt_tokens, max_new_tokens));
  if (answer.status != 201) throw std::runtime_error(answer.body);
  return parse_sequence_handle(answer.body);
}

void RunningTier::free(SequenceId id) const {
  const HttpResponse answer = http("DELETE", "/v1/sequences/" + id_text(id));
  if (answer.status != 200) throw std::runtime_error(answer.body);
}

double RunningTier::metric(const std::string& name, const std::string& label) const {
  std::istringstream lines(http("GET", "/metrics").body);
  double sum = 0;
  for (std::string line; std::getline(lines, line);) {
    const bool named = line.starts_with(name + "{") || line.starts_with(name + " ");
    if (!named || line.find(label) == std::string::npos) continue;
    sum += std::stod(line.substr(line.rfind(' ') + 1));
  }
  return sum;
}

bool RunningTier::all_free_within(double seconds) const {
  const Deadline deadline = Deadline::after(std::chrono::duration_cast<Deadline::Clock::duration>(
      std::chrono::duration<double>(seconds)));
  while (metric("tributary_pages_used") + metric("tributary_pages_reserved") > 0) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

}  // namespace tributary
