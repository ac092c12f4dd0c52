// Sizes that every part of a pool, and every client, counts with.
#pragma once

namespace tributary {

/// Tokens per page, everywhere (what FlashMLA and vLLM use).
inline constexpr int kPageTokens = 64;
/// New tokens of one sequence in one step, at most.
inline constexpr int kMaxStepTokens = 16;

}  // namespace tributary
