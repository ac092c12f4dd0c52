#include "deploy/service/worker/leader/beat_watch.h"

namespace tributary {

void BeatWatch::tick(Time now) {
  static_cast<void>(stalls_.tick(now));
  if (ending_ && stuck_) stuck_(inbox_.lost());
  inbox_.check_beats(limit_, now, stalls_.awake_since());
  ending_ = !inbox_.lost().ok();
}

}  // namespace tributary
