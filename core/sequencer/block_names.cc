#include "core/sequencer/block_names.h"

#include <cstddef>
#include <utility>

#include "core/base/error.h"
#include "core/base/limits.h"

namespace tributary {
namespace {

constexpr std::int32_t kLeastKeyBytes = 16;
constexpr std::int32_t kMostKeyBytes = 32;
constexpr std::size_t kMostSaltBytes = 64;

}  // namespace

void Prefix::add_key(std::string_view bytes) {
  if (keys.empty()) key_bytes = static_cast<std::int32_t>(bytes.size());
  if (std::cmp_not_equal(bytes.size(), key_bytes)) {
    fail(ErrorCode::kInvalidArgument, "prefix: key {} has {} bytes, the first has {}", blocks(),
         bytes.size(), key_bytes);
  }
  keys += bytes;
}

std::vector<std::string> block_names(const Prefix& prefix) {
  std::string tail;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    tail += static_cast<char>(static_cast<std::uint32_t>(prefix.block_tokens) >> shift & 0xffU);
  }
  tail += prefix.cache_salt;
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(prefix.blocks()));
  for (std::int64_t block = 0; block < prefix.blocks(); ++block) {
    const std::string_view key = prefix.key(block);
    std::string& name = names.emplace_back();
    name.reserve(1 + key.size() + tail.size());
    name += static_cast<char>(key.size());
    name += key;
    name += tail;
  }
  return names;
}

void check_keys(const Prefix& prefix) {
  if (prefix.keys.empty()) return;
  if (prefix.key_bytes < kLeastKeyBytes || prefix.key_bytes > kMostKeyBytes) {
    fail(ErrorCode::kInvalidArgument, "prefix: keys of {} bytes, expected {} .. {}",
         prefix.key_bytes, kLeastKeyBytes, kMostKeyBytes);
  }
  if (std::ssize(prefix.keys) % prefix.key_bytes != 0) {
    fail(ErrorCode::kInvalidArgument, "prefix: {} bytes of keys, expected a multiple of {}",
         prefix.keys.size(), prefix.key_bytes);
  }
}

void check_prefix(const Prefix& prefix, std::int64_t prompt_tokens, int leaf_tokens) {
  if (prefix.keys.empty()) return;
  check_keys(prefix);
  const std::int32_t tokens = prefix.block_tokens;
  if (tokens < kPageTokens || tokens % kPageTokens != 0 || leaf_tokens % tokens != 0) {
    fail(ErrorCode::kInvalidArgument,
         "prefix: blocks of {} tokens, expected a multiple of the page ({}) that divides the leaf "
         "({})",
         tokens, kPageTokens, leaf_tokens);
  }
  if (prefix.blocks() > prompt_tokens / tokens) {
    fail(ErrorCode::kInvalidArgument, "prefix: {} keys, a prompt of {} tokens has {} full blocks",
         prefix.blocks(), prompt_tokens, prompt_tokens / tokens);
  }
  if (prefix.cache_salt.size() > kMostSaltBytes) {
    fail(ErrorCode::kInvalidArgument, "prefix: a salt of {} bytes, expected {} at most",
         prefix.cache_salt.size(), kMostSaltBytes);
  }
}

}  // namespace tributary
