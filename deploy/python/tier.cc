#include "deploy/python/tier.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary::python {
namespace {

/// The tiers that must end before the interpreter does. Outlives every other static.
struct Running {
  const pid_t process = getpid();
  std::atomic<int> calls = 0;
  std::atomic<bool> ending = false;  // no new calls
  // Calls that have ended and ask for the interpreter's lock. A call that has counted itself before
  // `ended` is waited for; any other sees it.
  std::atomic<int> returning = 0;
  std::atomic<bool> ended = false;
  std::thread::id last;  // the thread that ends the interpreter and goes on after that; set before
                         // `ended`
  std::mutex mutex;
  std::vector<std::weak_ptr<LocalPool>> pools;  // mutex
};

Running& running() {
  static auto* const all = new Running;
  return *all;
}

void keep(const std::shared_ptr<LocalPool>& pool) {
  Running& all = running();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.pools, [](const auto& other) { return other.expired(); });
  all.pools.push_back(pool);
}

void end_all() {
  // Calls of pools end with their pools at once, those of services with their answers.
  constexpr auto kPatience = std::chrono::seconds(5);
  constexpr auto kPoll = std::chrono::milliseconds(1);
  Running& all = running();
  if (all.process != getpid()) return;  // of a fork: nothing runs here
  all.ending = true;
  const nanobind::gil_scoped_release unlocked;
  std::vector<std::weak_ptr<LocalPool>> pools;
  {
    const std::lock_guard lock(all.mutex);
    pools.swap(all.pools);
  }
  // All pools end side by side; each is waited for as its LocalPoolLimits::end says, from now on.
  const auto begin = std::chrono::steady_clock::now();
  const auto each = [&](auto work) {
    for (const auto& pool : pools) {
      if (const auto live = pool.lock()) static_cast<void>(status_of([&] { work(*live); }));
    }
  };
  each([](LocalPool& pool) { pool.terminate(); });
  each([begin](LocalPool& pool) { pool.close(begin); });
  const Deadline deadline = Deadline::after(kPatience);
  while (all.calls > 0 && !deadline.expired()) std::this_thread::sleep_for(kPoll);
  all.last = std::this_thread::get_id();
  all.ended = true;
  // The lock is free now, and these calls take it for moments.
  const Deadline soon = Deadline::after(kPatience);
  while (all.returning > 0 && !soon.expired()) std::this_thread::sleep_for(kPoll);
}

struct End {
  std::shared_ptr<LocalPool> pool;
  pid_t process = getpid();

  void operator()(TierClient* tier) {
    if (process != getpid()) return;  // its threads are not here to be joined
    const Unlocked unlocked;
    delete tier;
    pool.reset();
  }
};

}  // namespace

SharedTier share_tier(std::unique_ptr<TierClient> client, std::shared_ptr<LocalPool> pool) {
  if (pool) keep(pool);
  return {client.release(), End{.pool = std::move(pool)}};
}

TierClient& usable(const SharedTier& tier) {
  if (!tier) fail(ErrorCode::kFailedPrecondition, "the pool is closed");
  if (const End* end = std::get_deleter<End>(tier); end->process != getpid()) {
    fail(ErrorCode::kFailedPrecondition,
         "a client does not survive os.fork(): make one in the new process");
  }
  if (running().ending) fail(ErrorCode::kFailedPrecondition, "the interpreter ends");
  return *tier;
}

Unlocked::Counted::Counted() noexcept {
  ++running().calls;
}

Unlocked::Counted::~Counted() {
  --running().returning;
  --running().calls;
}

void Unlocked::come_back() noexcept {
  constexpr auto kDay = std::chrono::hours(24);
  Running& all = running();
  ++all.returning;
  if (!all.ended || all.last == std::this_thread::get_id()) return;
  --all.returning;
  while (true) std::this_thread::sleep_for(kDay);  // the process ends meanwhile
}

void bind_end() {
  nanobind::module_::import_("atexit").attr("register")(nanobind::cpp_function(&end_all));
}

}  // namespace tributary::python
