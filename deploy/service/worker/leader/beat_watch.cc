#include "deploy/service/worker/leader/beat_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "core/base/error.h"

namespace tributary {

void BeatWatch::tick(Time now) {
  static_cast<void>(stalls_.tick(now));
  judge(now);
  const auto lost = inbox_.lost();
  if (lost.empty()) {
    lost_since_.reset();
  } else if (!lost_since_) {
    lost_since_ = now;
  } else if (stuck_ && std::min(now - *lost_since_, now - stalls_.awake_since()) > limit_) {
    stuck_(lost.front().reason);
  }
}

void BeatWatch::judge(Time now) {
  using std::chrono::duration_cast, std::chrono::milliseconds;
  const auto workers = inbox_.heard(now);
  for (std::size_t r = 1; r < workers.size(); ++r) {
    const Duration silent = std::min(workers[r].age, now - stalls_.awake_since());
    if (silent <= limit_) continue;
    std::string why = fmt::format("worker {} has been silent for {} ms, limit {} ms", r,
                                  duration_cast<milliseconds>(silent).count(),
                                  duration_cast<milliseconds>(limit_).count());
    inbox_.post_lost(static_cast<int>(r), {ErrorCode::kWorkerFailed, std::move(why)});
  }
}

}  // namespace tributary
