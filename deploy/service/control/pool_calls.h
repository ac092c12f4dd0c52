// Pending requests to pools: each gets one answer, by its deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "deploy/service/control/pool_registry.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

/// Gives a question to a pool its number, from PoolCalls::open; other messages have none.
void set_request(ToPool& message, std::uint64_t request);

class PoolCalls {
 public:
  /// Receives the pool's answer, or kPoolLost or kDeadlineExceeded in its place.
  using Done = std::function<void(const PoolReply&)>;

  /// Returns the number for the question.
  [[nodiscard]] std::uint64_t open(const std::string& pool, Time deadline, Done done);
  /// Returns false if no call waits for the answer, or no longer.
  bool answer(const std::string& pool, const PoolReply& reply);
  /// Ends all questions to the pool with the status.
  void fail_pool(const std::string& pool, const Status& status);
  void expire(Time now);
  [[nodiscard]] std::size_t size() const noexcept { return calls_.size(); }

 private:
  struct Call {
    std::string pool;
    Time deadline;
    Done done;
  };
  /// Takes calls out before it ends them: an end may ask the next question.
  template <typename Matches>
  void end_all(const Matches& matches, const std::function<PoolReply(const Call&)>& reply);

  std::uint64_t next_ = 1;
  std::unordered_map<std::uint64_t, Call> calls_;
};

}  // namespace tributary
