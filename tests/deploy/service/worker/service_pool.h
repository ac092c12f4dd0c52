// A pool that serves, in one process for tests: ranks as threads, a data plane over comm/tcp or
// comm/ucx, and a control plane that the test plays.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "deploy/service/worker/serve_pool.h"

namespace tributary::test {

/// How long a test waits for something that must happen.
inline constexpr auto kPatience = std::chrono::seconds(30);

/// Small shapes, quick leases and no batching delays unless a test asks for them.
[[nodiscard]] WorkerOptions small_options();

class ServicePool {
 public:
  /// Puts a handler of the test's own between a worker's transport and its data plane.
  using Intercept = std::function<TransportHandler&(TransportHandler& data_plane)>;
  ServicePool(int workers, const WorkerOptions& options, Intercept intercept = {});
  /// Stops the pool cleanly, unless it has ended.
  ~ServicePool();
  ServicePool(const ServicePool&) = delete;
  ServicePool& operator=(const ServicePool&) = delete;

  /// The message with which the pool would register, sequences included.
  [[nodiscard]] RegisterPool card();
  [[nodiscard]] const std::string& address(int rank) const {
    return card_.workers[static_cast<std::size_t>(rank)].address;
  }
  [[nodiscard]] Heartbeat heartbeat();
  /// Sends a request and waits for its reply; `request` is filled in.
  template <typename Request>
  [[nodiscard]] PoolReply ask(Request request) {
    const std::uint64_t number = ++last_request_;
    request.request = number;
    if (!handlers_.request(request)) fail(ErrorCode::kInternal, "the leader is behind");
    return wait_reply(number);
  }
  [[nodiscard]] SequenceInfo admit(std::int64_t prompt_tokens, std::int64_t max_new_tokens,
                                   SpreadPolicy spread = SpreadPolicy::kAuto);
  void free(SequenceId id);
  [[nodiscard]] SequenceEnded wait_ended();
  /// Pages in use or promised on all workers.
  [[nodiscard]] std::int64_t held_pages();
  /// Waits until no page is held.
  void expect_all_free();

  /// Requests a clean stop, and waits for it; throws what the pool threw.
  void stop();
  /// Waits until the pool ends by itself.
  [[nodiscard]] Status wait_end();

 private:
  class Channel;
  PoolReply wait_reply(std::uint64_t request);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FromPool> words_;
  RegisterPool card_;
  std::mutex ending_;  // while the pool is asked to end, or its channel ends
  ControlLinkHandlers handlers_;
  std::atomic<std::uint64_t> last_request_ = 0;
  std::atomic<std::uint64_t> last_id_ = std::uint64_t{7} << 32;
  bool joined_ = false;
  std::promise<void> serving_;
  std::promise<Status> ended_;
  std::future<Status> end_ = ended_.get_future();
  std::thread thread_;
};

}  // namespace tributary::test
