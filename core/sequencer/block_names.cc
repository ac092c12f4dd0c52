#include "core/sequencer/block_names.h"

#include <cstddef>
#include <utility>

#include "core/base/error.h"
#include "core/base/limits.h"

namespace tributary {
namespace {

constexpr std::size_t kLeastKeyBytes = 16;
constexpr std::size_t kMostKeyBytes = 32;
constexpr std::size_t kMostSaltBytes = 64;

}  // namespace

std::vector<std::string> block_names(const Prefix& prefix) {
  std::vector<std::string> names;
  names.reserve(prefix.keys.size());
  for (const std::string& key : prefix.keys) {
    std::string& name = names.emplace_back();
    name.reserve(1 + key.size() + sizeof(prefix.block_tokens) + prefix.salt.size());
    name += static_cast<char>(key.size());
    name += key;
    for (unsigned shift = 0; shift < 32; shift += 8) {
      name += static_cast<char>(static_cast<std::uint32_t>(prefix.block_tokens) >> shift & 0xffU);
    }
    name += prefix.salt;
  }
  return names;
}

void check_keys(const Prefix& prefix) {
  if (prefix.keys.empty()) return;
  const std::size_t bytes = prefix.keys.front().size();
  for (std::size_t i = 0; i < prefix.keys.size(); ++i) {
    const std::size_t here = prefix.keys[i].size();
    if (here >= kLeastKeyBytes && here <= kMostKeyBytes && here == bytes) continue;
    fail(ErrorCode::kInvalidArgument,
         "prefix: key {} has {} bytes, expected {} .. {}, as many as the first ({})", i, here,
         kLeastKeyBytes, kMostKeyBytes, bytes);
  }
}

void check_prefix(const Prefix& prefix, std::int64_t prompt_tokens, int leaf_tokens) {
  if (prefix.keys.empty()) return;
  const std::int32_t tokens = prefix.block_tokens;
  if (tokens < kPageTokens || tokens % kPageTokens != 0 || leaf_tokens % tokens != 0) {
    fail(ErrorCode::kInvalidArgument,
         "prefix: blocks of {} tokens, expected a multiple of the page ({}) that divides the leaf "
         "({})",
         tokens, kPageTokens, leaf_tokens);
  }
  if (std::cmp_greater(prefix.keys.size(), prompt_tokens / tokens)) {
    fail(ErrorCode::kInvalidArgument, "prefix: {} keys, a prompt of {} tokens has {} full blocks",
         prefix.keys.size(), prompt_tokens, prompt_tokens / tokens);
  }
  check_keys(prefix);
  if (prefix.salt.size() > kMostSaltBytes) {
    fail(ErrorCode::kInvalidArgument, "prefix: a salt of {} bytes, expected {} at most",
         prefix.salt.size(), kMostSaltBytes);
  }
}

}  // namespace tributary
