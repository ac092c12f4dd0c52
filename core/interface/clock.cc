#include "core/interface/clock.h"

namespace tributary {
namespace {

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] Time now() const override { return std::chrono::steady_clock::now(); }
  void wait_until(Condition& changed, std::unique_lock<std::mutex>& lock, Time until) override {
    changed.variable().wait_until(lock, until);
  }
};

}  // namespace

Clock& steady_clock() {
  static SteadyClock clock;
  return clock;
}

}  // namespace tributary
