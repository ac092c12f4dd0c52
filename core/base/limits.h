// Sizes that every part of a pool and every client relies on.
#pragma once

namespace tributary {

/// Tokens per page, everywhere (what FlashMLA and vLLM use).
inline constexpr int kPageTokens = 64;
/// The most new tokens of one sequence in one step.
inline constexpr int kMaxStepTokens = 16;

}  // namespace tributary
