#include "deploy/local/bounded_thread.h"

#include <utility>

namespace tributary {

BoundedThread::BoundedThread(std::function<void()> body) {
  // An exception would stay in a future that nobody reads; as in a plain thread, it ends the
  // process.
  std::packaged_task<void()> task([body = std::move(body)]() noexcept { body(); });
  ended_ = task.get_future();
  thread_ = std::thread(std::move(task));
}

BoundedThread::~BoundedThread() {
  if (thread_.joinable()) thread_.detach();
}

bool BoundedThread::join_within(std::chrono::milliseconds limit) {
  if (!thread_.joinable()) return true;
  if (ended_.wait_for(limit) != std::future_status::ready) return false;
  thread_.join();  // what is left of it waits for nobody
  return true;
}

}  // namespace tributary
