// The backends on which tests compare a pool's bits with those of other pools.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/hash.h"
#include "core/base/limits.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/deploy/pool/pool_harness.h"
#include "tests/kernels/cpu/emulated_table.h"
#include "tests/sanitized.h"

namespace tributary {

inline constexpr std::string_view kReference = "reference";
inline constexpr std::string_view kEmulatedTiles = "EmulatedTiles";

/// The reference, every instruction set of this machine, and emulated tiles. Under a sanitizer,
/// which sees all of these in kernels_cpu_test, the machine's own alone.
inline std::vector<std::string> bits_backends() {
  if (test::kSanitized) return {std::string(cpu_instruction_sets().front())};
  std::vector<std::string> names{std::string(kReference)};
  for (const std::string_view set : cpu_instruction_sets()) names.emplace_back(set);
  if (cpu::emulated_amx_table() != nullptr) names.emplace_back(kEmulatedTiles);
  return names;
}

/// Has the pool compute with that backend, of a shape that it supports.
inline void use_backend(PoolSetup& setup, const std::string& name, int threads) {
  if (name == kEmulatedTiles || name.find("_BF16") != std::string::npos) {
    // The widths that the kernels of bf16 pairs support.
    setup.shape.kv_lora_rank = 64;
    setup.shape.query_dtype = DType::kBF16;
  }
  setup.backend = [name, threads](int /*rank*/) {
    if (name == kReference) return make_reference_backend();
    if (name == kEmulatedTiles) {
      return cpu::make_table_backend(*cpu::emulated_amx_table(), threads);
    }
    return make_cpu_backend({.threads = threads, .instruction_set = name});
  };
}

/// 1 to kMaxStepTokens tokens a step, as from a hash.
inline std::int32_t mixed_tokens(std::int64_t tag, std::int64_t step) {
  const std::uint64_t hash = mix64(static_cast<std::uint64_t>(tag * 1000 + step));
  return 1 + static_cast<std::int32_t>(hash % kMaxStepTokens);
}

}  // namespace tributary
