// The JSON of sequences, shapes and workers, shared by pool messages and the HTTP interface. For
// .cc files of deploy/ only, since it shows the JSON library.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/protocol/json_object.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

// Bounds of numbers that are read. Today's models offer a million tokens of context per sequence;
// the bound leaves room and keeps sums far from overflow.
inline constexpr std::int64_t kMaxSequenceTokens = std::int64_t{1} << 32;
inline constexpr int kMaxWorkers = 65'536;
inline constexpr std::size_t kMaxExtents = 1'000'000;
inline constexpr std::size_t kMaxNameBytes = 63;       // of pools: file names and labels hold them
inline constexpr std::size_t kMaxKeyBytes = 128;       // idempotency keys: a UUID, a hash
inline constexpr std::size_t kMaxSecretBytes = 64;     // and their secrets
inline constexpr std::size_t kMaxAddressBytes = 1024;  // and host names
/// Of a prefix: 262,144 tokens in blocks of a page. With the longest keys they take 262 kB.
inline constexpr std::size_t kMaxPrefixKeys = 4096;
inline constexpr std::int32_t kMaxPrefixKeyBytes = 32;

[[nodiscard]] nlohmann::json shape_to_json(const PoolShape& shape);
[[nodiscard]] PoolShape shape_from_json(const nlohmann::json& value, std::string_view what);

[[nodiscard]] nlohmann::json extents_to_json(const std::vector<Extent>& extents);
/// Extents ascend from 0, without gaps unless `with_gaps`.
[[nodiscard]] std::vector<Extent> extents_from_json(const nlohmann::json& array,
                                                    std::string_view what, bool with_gaps = false);

/// The fields that pool messages and admission answers share: epoch, state, home, prompt_tokens,
/// max_new_tokens, present_tokens, length, token, missing, extents, lost, lost_workers.
void put_sequence(nlohmann::json& object, const SequenceInfo& sequence);
/// The caller reads `id`, which it names itself.
void take_sequence(JsonObject& object, SequenceInfo& sequence);

/// The fields that a request over HTTP and a request to a pool share: all but key and secret.
void put_request(nlohmann::json& object, const AdmitRequest& request);
[[nodiscard]] AdmitRequest take_request(JsonObject& object);

/// A name has 1 .. kMaxNameBytes of letters, digits, `.`, `_` and `-`: fit for paths, labels and
/// logs.
void check_pool_name(std::string_view name);
/// A key has at most kMaxKeyBytes of printable ASCII.
void check_idempotency_key(std::string_view key);
/// A secret has at most kMaxSecretBytes of it. The error does not show it.
void check_idempotency_secret(std::string_view secret);

}  // namespace tributary
