#include "deploy/service/worker/leader/beat_watch.h"

#include <algorithm>

namespace tributary {

void BeatWatch::tick(Time now) {
  static_cast<void>(stalls_.tick(now));
  inbox_.check_beats(limit_, now, stalls_.awake_since());
  const auto lost = inbox_.lost();
  if (lost.empty()) {
    lost_since_.reset();
  } else if (!lost_since_) {
    lost_since_ = now;
  } else if (stuck_ && std::min(now - *lost_since_, now - stalls_.awake_since()) > limit_) {
    stuck_(lost.front().reason);
  }
}

}  // namespace tributary
