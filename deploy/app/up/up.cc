#include "deploy/app/up/up.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/http/http_client.h"
#include "core/base/error.h"
#include "deploy/app/up/child_log.h"
#include "deploy/app/up/child_process.h"
#include "deploy/app/up/mpirun_script.h"
#include "deploy/options/option_table.h"
#include "deploy/runtime/descriptors.h"
#include "deploy/service/client/service_options.h"

namespace tributary {
namespace {

/// The time that a process has from SIGTERM to its end, besides the pool's drain timeout.
constexpr std::chrono::seconds kStopTimeout{4};
constexpr std::chrono::milliseconds kReadyPause{50};
constexpr std::chrono::milliseconds kWatchPause{100};

/// SIGINT, SIGTERM and SIGHUP are blocked, and polled by end_requested(); not an ignored SIGHUP,
/// which Linux would queue if it were blocked.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    for (const int number : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set_, number);
    struct sigaction hangup {};
    sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaddset(&set_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  /// Waits for at most `wait`; true if a signal asks for the end. A child's exit ends the wait too.
  [[nodiscard]] bool end_requested(std::chrono::milliseconds wait) {
    const timespec time{.tv_sec = wait.count() / 1000, .tv_nsec = wait.count() % 1000 * 1'000'000};
    const int number = sigtimedwait(&set_, nullptr, &time);
    return number == SIGINT || number == SIGTERM || number == SIGHUP;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

/// Adds what gives `options` on a command line.
template <class Options>
void add_words(Options options, std::vector<std::string>& line) {
  for (std::string& word : words_of(option_lines(options))) line.push_back(std::move(word));
}

class Service {
 public:
  explicit Service(const UpOptions& options)
      : options_(options), program_(std::filesystem::read_symlink("/proc/self/exe").string()) {}

  /// False if the end was requested in the meantime.
  bool start() {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(options_.start_timeout_ms));
    std::vector<std::string> control = {program_, "control"};
    ControlOptions plane = options_.control;
    plane.failure_timeout_ms = options_.worker.failure_timeout_ms;
    add_words(plane, control);
    control_.emplace("the control plane", control, options_.verbose);
    if (!await([&] { return read_url(); }, deadline)) return false;

    WorkerOptions worker = options_.worker;
    worker.control = url_;
    worker.token_file = options_.control.pool_token_file.empty() ? options_.control.token_file
                                                                 : options_.control.pool_token_file;
    worker.tls_certificate = options_.control.tls_certificate;
    worker.tls_key = options_.control.tls_key;
    std::vector<std::string> pool = {"bash",      "-c",    std::string(mpirun_script()),
                                     "mpirun.sh", "-np",   std::to_string(options_.workers),
                                     program_,    "worker"};
    add_words(worker, pool);
    pool_.emplace("the pool", pool, options_.verbose);

    ServiceOptions service;
    service.token_file = options_.control.token_file;
    http_ = std::make_unique<HttpClient>(
        HttpClientConfig{.url = parse_url(url_),
                         .bearer_token = client_config(service).bearer_token,
                         .certificate_authority = options_.worker.certificate_authority});
    return await([&] { return ready(); }, deadline);
  }

  /// Returns when the end is requested.
  void watch() {
    do check_children();
    while (!signals_.end_requested(kWatchPause));
  }

  /// What the children write from now on is of no interest.
  void hush() {
    for (auto* child : {&control_, &pool_}) {
      if (*child) (*child)->shows = false;
    }
  }

  /// Stops the pool first, so that it can unregister. A second request for the end
  /// cuts the waiting short.
  void stop() {
    if (pool_) {
      // The signal goes directly to the ranks: mpirun would kill them a second after it.
      pool_->process.signal_descendants(SIGTERM);
      const std::chrono::milliseconds drain(options_.worker.leader.drain_timeout_ms);
      if (!wait(*pool_, kStopTimeout + drain)) {
        pool_->process.signal(SIGTERM);
        pool_->process.wait(Deadline::after(kStopTimeout));
      }
      pool_.reset();
    }
    if (control_) {
      control_->process.signal(SIGTERM);
      wait(*control_, kStopTimeout);
      control_.reset();
    }
  }

  [[nodiscard]] const std::string& url() const noexcept { return url_; }

 private:
  struct Child {
    Child(const std::string& name, const std::vector<std::string>& arguments, bool verbose)
        : process(name, arguments), log(verbose) {}

    /// Shows what it wrote meanwhile, without what explains its end. Returns the whole.
    std::string pass_on() {
      std::string output = process.read_output();
      const std::string lines = log.pass_on(output);
      if (shows) (void)!write(STDERR_FILENO, lines.data(), lines.size());
      return output;
    }

    ChildProcess process;
    ChildLog log;
    bool shows = true;
  };

  /// False if the end was requested before the condition held.
  template <typename Condition>
  bool await(const Condition& condition, Deadline deadline) {
    while (!condition()) {
      check_children();
      if (deadline.expired()) {
        fail(ErrorCode::kDeadlineExceeded,
             "the service is not ready after {} ms (see "
             "--start-timeout-ms)",
             options_.start_timeout_ms);
      }
      if (signals_.end_requested(kReadyPause)) return false;
    }
    return true;
  }

  void check_children() {
    for (auto* child : {&control_, &pool_}) {
      if (!*child) continue;
      ChildProcess& process = (*child)->process;
      const bool ended = process.ended().has_value();  // so all that it wrote is there
      (*child)->pass_on();
      if (!ended) continue;
      const std::optional<Status> reason = (*child)->log.reason();
      if (reason) fail(reason->code(), "{} has ended: {}", process.name(), reason->message());
      fail(ErrorCode::kUnavailable, "{} has ended ({}){}", process.name(), *process.ended(),
           options_.verbose ? "" : "; --verbose shows mpirun's words");
    }
  }

  bool wait(Child& child, std::chrono::milliseconds timeout) {
    const Deadline deadline = Deadline::after(timeout);
    for (; !child.process.ended(); child.pass_on()) {
      if (deadline.expired() || signals_.end_requested(kReadyPause)) return false;
    }
    child.pass_on();
    return true;
  }

  /// Whether the control plane has reported its address.
  bool read_url() {
    output_ += control_->pass_on();
    const std::size_t begin = output_.find(kListeningOn);
    const std::size_t end = output_.find('\n', begin == std::string::npos ? 0 : begin);
    if (begin == std::string::npos || end == std::string::npos) return false;
    const std::size_t url = begin + std::string_view(kListeningOn).size();
    url_ = output_.substr(url, end - url);
    return true;
  }

  bool ready() {
    try {
      return http_->request("GET", "/readyz", "", Deadline::after(std::chrono::seconds(2)))
                 .status == 200;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kDeadlineExceeded) {
        return false;
      }
      throw;
    }
  }

  const UpOptions& options_;
  std::string program_;
  Signals signals_;
  std::string output_, url_;
  std::unique_ptr<HttpClient> http_;
  std::optional<Child> control_, pool_;
};

}  // namespace

void up(const UpOptions& options) {
  // Measured: with 32 mpirun hangs or crashes over 2 ranks, with 40 it runs them, with 64 it
  // runs 8.
  need_descriptors(32 + 4 * static_cast<unsigned>(options.workers));
  Service service(options);
  try {
    if (service.start()) {
      fmt::print("service      {}\nstatus page  {}/\nmetrics      {}/metrics\n", service.url(),
                 service.url(), service.url());
      fmt::print("ready with {} workers; Ctrl-C ends it\n", options.workers);
      std::fflush(stdout);
      service.watch();
    }
  } catch (const Error&) {
    service.hush();
    service.stop();
    throw;
  }
  fmt::print("stopping; running sequences have {} ms, a second signal ends them at once\n",
             options.worker.leader.drain_timeout_ms);
  std::fflush(stdout);
  service.stop();
}

}  // namespace tributary
