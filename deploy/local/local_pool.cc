#include "deploy/local/local_pool.h"

#include <unistd.h>

#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/local/local_transport.h"
#include "comm/local/run_ranks.h"
#include "comm/local/thread_group.h"
#include "core/base/error.h"
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
  options.lease_ms = options.worker_timeout_ms = options.round_timeout_ms = kDayMs;
  options.drain_timeout_ms = 0;
  return options;
}

class LocalPool::Impl {
 public:
  Impl(int workers, const WorkerOptions& options) {
    if (workers < 1 || workers > ThreadGroup::kMaxRanks) {
      fail(ErrorCode::kInvalidArgument, "{} workers: expected 1 .. {}", workers,
           ThreadGroup::kMaxRanks);
    }
    thread_ = std::thread([this, workers, options] { run(workers, options); });
    // Loading and joining have deadlines of their own.
    serving_.get_future().wait();
    if (started_.ok()) return;
    thread_.join();
    started_.throw_if_error();
  }

  ~Impl() { close(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void close() {
    const std::lock_guard lock(closing_);
    if (!thread_.joinable()) return;
    control_->terminate();
    thread_.join();
  }

  [[nodiscard]] bool forked() const noexcept { return getpid() != process_; }
  [[nodiscard]] const std::shared_ptr<LocalControl>& control() const noexcept { return control_; }
  [[nodiscard]] MakeTransport transport() const { return transport_of(network_); }
  [[nodiscard]] const RegisterPool& card() const noexcept { return card_; }

 private:
  void run(int workers, const WorkerOptions& options) {
    bool serves = false;
    WorkerEvents events;
    events.log = [](const std::string&) {};  // nobody operates it
    events.serving = [&](const RegisterPool& card) {
      card_ = card;
      serves = true;
      serving_.set_value();
    };
    const Status end = status_of([&] {
      run_ranks(workers, [&](Communicator& communicator) {
        run_worker(options, communicator, transport_of(network_), events,
                   [this](RegisterPool pool, ControlLinkHandlers handlers) {
                     return control_->connect(std::move(pool), std::move(handlers));
                   });
      });
    });
    control_->lose(end);
    if (serves) return;
    started_ = end.ok() ? Status(ErrorCode::kInternal, "the pool ended before it served") : end;
    serving_.set_value();
  }

  const pid_t process_ = getpid();
  std::shared_ptr<LocalNetwork> network_ = std::make_shared<LocalNetwork>();
  std::shared_ptr<LocalControl> control_ = std::make_shared<LocalControl>();
  std::promise<void> serving_;  // or it never will
  Status started_;              // set before that
  RegisterPool card_;           // likewise
  std::mutex closing_;
  std::thread thread_;
};

LocalPool::LocalPool(int workers, const WorkerOptions& options)
    : impl_(std::make_unique<Impl>(workers, options)) {}

LocalPool::~LocalPool() {
  // The threads' stacks and what they hold are not this process's to touch.
  if (impl_->forked()) static_cast<void>(impl_.release());
}

void LocalPool::close() noexcept {
  if (!impl_->forked()) impl_->close();
}

void LocalPool::check_process() const {
  if (impl_->forked()) {
    fail(ErrorCode::kFailedPrecondition,
         "the pool runs in the process that made it: after os.fork() make another");
  }
}

std::unique_ptr<TierClient> LocalPool::make_client(const TierClientConfig& config) const {
  check_process();
  return std::make_unique<TierClient>(config, impl_->transport(), impl_->control());
}

Heartbeat LocalPool::heartbeat() const {
  check_process();
  return impl_->control()->heartbeat();
}

const PoolShape& LocalPool::shape() const noexcept {
  return impl_->card().shape;
}

int LocalPool::pages_per_worker() const noexcept {
  return impl_->card().pages_per_worker;
}

}  // namespace tributary
