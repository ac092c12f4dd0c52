// One sequence's part of a step at one layer. A client asks for it, the leader puts it into an
// order, and every worker plans it: one struct all the way.
#pragma once

#include <cstdint>

#include "core/cache/sequence_table.h"

namespace tributary {

/// New tokens at positions base_length .. base_length + tokens - 1.
struct StepItem {
  SequenceId id = 0;
  std::int32_t tokens = 0;  // 1 .. kMaxStepTokens
  std::int32_t layer = 0;
  std::uint32_t epoch = 0;
  std::int64_t base_length = 0;  // the sequence's length before the step

  /// The fields in messages: calls archive(field) for each.
  static void fields(auto& archive, auto& m) {
    archive(m.id, m.epoch, m.base_length, m.tokens, m.layer);
  }
};

/// The next `tokens` tokens of a sequence.
[[nodiscard]] inline StepItem next_item(const Sequence& s, std::int32_t tokens,
                                        std::int32_t layer = 0) {
  return {s.id, tokens, layer, s.epoch, s.length};
}

}  // namespace tributary
