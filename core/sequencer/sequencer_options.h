// The options of the sequencer of a pool.
#pragma once

#include <string_view>

#include "core/base/option.h"

namespace tributary {

struct SequencerOptions {
  double max_step_ms = 0;
  /// The default is more than most machines copy: MoveSchedule::order_ended() then bounds copies to
  /// a fifth of the time.
  double move_bytes_per_s = 1e10;

  /// `moves` says how fast leaves move in the pools of the command.
  template <class Visitor>
  void for_each_option(Visitor& v, std::string_view moves) {
    v(max_step_ms, "--max-step-ms", {0, 1e6},
      "With spread auto a sequence is cut where a step would be predicted longer than this and a "
      "cut keeps it within; 0 for no bound");
    v(move_bytes_per_s, "--move-bytes-per-s", {0, 1e12}, moves);
  }
};

}  // namespace tributary
