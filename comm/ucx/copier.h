// A second thread of the transport: payloads that have arrived go to where they belong while the
// progress thread receives the next.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/transport/transport.h"

namespace tributary::ucx {

/// To the pieces of `landing` and, part by part, to its `landed`.
void land(const Landing& landing, const std::byte* payload);

/// All but the thread itself is the progress thread's.
class Copier {
 public:
  /// `wake` is called on the thread when there is something to take.
  explicit Copier(std::function<void()> wake);
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  /// Both stay until the number was taken. As many as there are buffers to copy from.
  void add(std::uint64_t number, const Landing& landing, const std::byte* payload);
  /// The numbers of those that have landed since the last call.
  [[nodiscard]] std::vector<std::uint64_t> take_landed();
  /// Waits for all that were added: some milliseconds of copying.
  void finish();

 private:
  struct Job {
    std::uint64_t number = 0;
    const Landing* landing = nullptr;
    const std::byte* payload = nullptr;
  };

  void run();

  const std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first is being copied
  std::vector<std::uint64_t> landed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tributary::ucx
