#include "deploy/local/local_pool.h"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "comm/local/local_transport.h"
#include "comm/local/run_ranks.h"
#include "comm/local/thread_group.h"
#include "core/base/error.h"
#include "core/interface/clock.h"
#include "deploy/local/bounded_thread.h"
#include "deploy/local/local_control.h"
#include "deploy/service/worker/serve_pool.h"

namespace tributary {
namespace {

constexpr int kDayMs = 24 * 3600 * 1000;

MakeTransport transport_of(const std::shared_ptr<LocalNetwork>& network) {
  return [network](const TransportConfig& config, TransportHandler& handler) {
    return make_local_transport(network, config, handler);
  };
}

}  // namespace

WorkerOptions local_options() {
  WorkerOptions options;
  options.name = "local";
  options.transport = TransportChoice::kLocal;
  options.leader.lease_ms = options.failure_timeout_ms = kDayMs;
  options.leader.drain_timeout_ms = 0;
  return options;
}

/// The state that the pool's threads use; it is theirs as long as they run.
class LocalPool::Run {
 public:
  /// Runs until the pool has ended; serves() is ready then at the latest.
  void run(int workers, const WorkerOptions& options);

  /// Ready when the pool serves or has ended; wait for it once.
  [[nodiscard]] std::future<Status> serves() { return serving_.get_future(); }
  /// Nobody waits any more: a pool that would serve later ends at once.
  void give_up();

  [[nodiscard]] const std::shared_ptr<LocalControl>& control() const noexcept { return control_; }
  [[nodiscard]] MakeTransport transport() const { return transport_of(network_); }
  [[nodiscard]] const RegisterPool& card() const noexcept { return card_; }

 private:
  void serve(const RegisterPool& card);

  std::shared_ptr<LocalNetwork> network_ = std::make_shared<LocalNetwork>();
  std::shared_ptr<LocalControl> control_ = std::make_shared<LocalControl>(steady_clock());
  std::promise<Status> serving_;
  RegisterPool card_;  // set before that
  std::mutex mutex_;   // guards what follows
  bool served_ = false;
  bool given_up_ = false;
};

void LocalPool::Run::run(int workers, const WorkerOptions& options) {
  WorkerEvents events;
  events.log = [](const std::string&) {};  // nobody operates it
  events.serving = [this](const RegisterPool& card) { serve(card); };
  const Status end = status_of([&] {
    run_ranks(workers, [&](Communicator& communicator) {
      run_worker(options, communicator, transport_of(network_), events,
                 [this](RegisterPool pool, ControlLinkHandlers handlers) {
                   return control_->connect(std::move(pool), std::move(handlers));
                 });
    });
  });
  control_->lose(end);
  const std::lock_guard lock(mutex_);
  if (served_) return;
  serving_.set_value(end.ok() ? Status(ErrorCode::kInternal, "the pool ended before it served")
                              : end);
}

void LocalPool::Run::serve(const RegisterPool& card) {
  const std::lock_guard lock(mutex_);
  card_ = card;
  served_ = true;
  serving_.set_value({});
  if (given_up_) control_->terminate();
}

void LocalPool::Run::give_up() {
  const std::lock_guard lock(mutex_);
  given_up_ = true;
  if (served_) control_->terminate();
}

class LocalPool::Impl {
 public:
  Impl(int workers, const WorkerOptions& options, const LocalPoolLimits& limits) : limits_(limits) {
    if (workers < 1 || workers > ThreadGroup::kMaxRanks) {
      fail(ErrorCode::kInvalidArgument, "{} workers: expected 1 .. {}", workers,
           ThreadGroup::kMaxRanks);
    }
    std::future<Status> serves = run_->serves();
    thread_.emplace([run = run_, workers, options] { run->run(workers, options); });
    if (serves.wait_for(limits.start) != std::future_status::ready) {
      run_->give_up();
      fail(ErrorCode::kDeadlineExceeded,
           "a pool of {} workers in this process does not serve after {} ms", workers,
           limits.start.count());
    }
    const Status started = serves.get();
    if (started.ok()) return;
    static_cast<void>(thread_->join_within(limits.end));
    started.throw_if_error();
  }

  void terminate() { run_->control()->terminate(); }

  void close(std::optional<Time> since) {
    Clock& clock = steady_clock();
    const Time begin = since.value_or(clock.now());
    terminate();
    // The holder of the lock began first, so this caller waits no longer than its own limit.
    const std::lock_guard lock(closing_);
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(begin + limits_.end - clock.now());
    stuck_ = !thread_->join_within(std::max(left, std::chrono::milliseconds(0)));
    if (!stuck_) return;
    fail(ErrorCode::kDeadlineExceeded,
         "the threads of the pool have not ended {} ms after they were told to",
         limits_.end.count());
  }

  /// Called at the end, with nobody else in close(): a caller that has waited in vain does not wait
  /// again.
  void leave() {
    if (!stuck_) static_cast<void>(status_of([&] { close({}); }));
  }

  [[nodiscard]] bool forked() const noexcept { return getpid() != process_; }
  [[nodiscard]] const Run& running() const noexcept { return *run_; }

 private:
  const pid_t process_ = getpid();
  const LocalPoolLimits limits_;
  const std::shared_ptr<Run> run_ = std::make_shared<Run>();
  std::mutex closing_;
  bool stuck_ = false;  // closing_
  std::optional<BoundedThread> thread_;
};

LocalPool::LocalPool(int workers, const WorkerOptions& options, const LocalPoolLimits& limits)
    : impl_(std::make_unique<Impl>(workers, options, limits)) {}

LocalPool::~LocalPool() {
  // A fork must not touch the threads' stacks or the objects that they hold.
  if (impl_->forked()) {
    static_cast<void>(impl_.release());
    return;
  }
  impl_->leave();
}

void LocalPool::close(std::optional<Time> begin) {
  if (!impl_->forked()) impl_->close(begin);
}

void LocalPool::terminate() {
  if (!impl_->forked()) impl_->terminate();
}

void LocalPool::check_process() const {
  if (impl_->forked()) {
    fail(ErrorCode::kFailedPrecondition,
         "the pool runs in the process that made it: after os.fork() make another");
  }
}

std::unique_ptr<TierClient> LocalPool::make_client(const TierClientConfig& config) const {
  check_process();
  return std::make_unique<TierClient>(config, impl_->running().transport(),
                                      impl_->running().control());
}

Heartbeat LocalPool::heartbeat() const {
  check_process();
  return impl_->running().control()->heartbeat();
}

const PoolShape& LocalPool::shape() const noexcept {
  return impl_->running().card().shape;
}

int LocalPool::pages_per_worker() const noexcept {
  return impl_->running().card().pages_per_worker;
}

}  // namespace tributary
