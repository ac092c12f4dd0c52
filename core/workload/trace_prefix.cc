#include "core/workload/trace_prefix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <string>

#include "core/base/limits.h"

namespace tributary {
namespace {

void append(std::string& keys, std::int64_t number) {
  for (unsigned shift = 0; shift < 64; shift += 8) {
    keys += static_cast<char>(static_cast<std::uint64_t>(number) >> shift & 0xffU);
  }
}

}  // namespace

Prefix trace_prefix(std::span<const std::int64_t> hash_ids, std::int64_t prompt_tokens,
                    double length_scale, int leaf_tokens) {
  if (hash_ids.empty()) return {};
  const double tokens =
      std::clamp(static_cast<double>(kHashBlockTokens) * length_scale,
                 static_cast<double>(kPageTokens), static_cast<double>(leaf_tokens));
  Prefix prefix{
      .block_tokens = static_cast<std::int32_t>(std::bit_floor(static_cast<unsigned>(tokens))),
      .key_bytes = 2 * sizeof(std::int64_t)};
  for (std::int64_t end = prefix.block_tokens; end <= prompt_tokens; end += prefix.block_tokens) {
    // The id that covers the block's last token stands for all tokens before it too.
    const double blocks =
        std::ceil(static_cast<double>(end) / length_scale / static_cast<double>(kHashBlockTokens));
    const auto last = static_cast<std::size_t>(std::max(blocks, 1.0)) - 1;
    if (last >= hash_ids.size()) break;
    append(prefix.keys, hash_ids[last]);
    append(prefix.keys, end);
  }
  return prefix;
}

}  // namespace tributary
