// A pool's orders between ranks that are threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/awake_wait.h"
#include "core/pool/order_channel.h"

namespace tributary {

/// All orders of a pool; one for all ranks.
struct OrderBoard {
  std::mutex mutex;  // guards what follows
  std::condition_variable posted;
  std::vector<std::vector<std::byte>> orders;
};

class ThreadOrders final : public OrderChannel {
 public:
  explicit ThreadOrders(OrderBoard& board) : board_(board) {}

  Status send(std::span<const std::byte> order, Deadline /*deadline*/) override {
    const std::lock_guard lock(board_.mutex);
    board_.orders.emplace_back(order.begin(), order.end());
    board_.posted.notify_all();
    return {};
  }

  Status wait(std::vector<std::byte>& order, Deadline deadline,
              const std::function<Status()>& look) override {
    constexpr std::chrono::milliseconds kLook{5};
    AwakeWait patience(deadline, std::chrono::steady_clock::now());
    std::unique_lock lock(board_.mutex);
    while (next_ == board_.orders.size()) {
      Status status = look();
      if (!status.ok()) return status;
      if (patience.over(std::chrono::steady_clock::now())) {
        return {ErrorCode::kDeadlineExceeded, "no order came in time"};
      }
      board_.posted.wait_for(lock, kLook);
    }
    order = board_.orders[next_++];
    return {};
  }

  void wake() override { board_.posted.notify_all(); }

 private:
  OrderBoard& board_;
  std::size_t next_ = 0;
};

}  // namespace tributary
