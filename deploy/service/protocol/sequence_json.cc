#include "deploy/service/protocol/sequence_json.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "comm/wire/access_token.h"
#include "comm/wire/codec.h"
#include "core/base/dtype.h"
#include "core/base/hex.h"
#include "core/base/quote.h"
#include "core/sequencer/block_names.h"

namespace tributary {

using nlohmann::json;

namespace {

constexpr std::array kStates{SequenceState::kFilling, SequenceState::kReady,
                             SequenceState::kStepping};
// The element types that queries may have.
constexpr std::array kElementTypes{DType::kF32, DType::kBF16};
// The bound of any dimension; products of two stay far from overflow.
constexpr std::int32_t kMaxDimension = 1 << 20;

bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= 0x21 && c <= 0x7e; });
}

// Writing a field of a shape, by its type, and reading it.

std::int32_t json_value(std::int32_t dimension) {
  return dimension;
}
float json_value(float number) {
  return number;
}
std::string_view json_value(DType type) {
  return dtype_name(type);
}
std::string json_value(RowFormat format) {
  return row_format_name(format);
}

void take(JsonObject& object, std::string_view field, int least, std::int32_t& dimension) {
  dimension = object.integer<std::int32_t>(field, least, kMaxDimension);
}
void take(JsonObject& object, std::string_view field, int /*least*/, float& number) {
  number = static_cast<float>(object.number(field));
  if (!std::isfinite(number)) {
    fail(ErrorCode::kMalformedInput, "{} does not fit a float", object.path(field));
  }
}
void take(JsonObject& object, std::string_view field, int /*least*/, DType& type) {
  const std::string& name = object.text(field, 16);
  const auto* const found = std::ranges::find(kElementTypes, name, dtype_name);
  if (found == kElementTypes.end()) {
    fail(ErrorCode::kMalformedInput, "{} is {}, not bf16 or f32", object.path(field), quote(name));
  }
  type = *found;
}
void take(JsonObject& object, std::string_view field, int /*least*/, RowFormat& format) {
  const std::string& name = object.text(field, 32);
  const auto found = find_row_format(name);
  if (!found) {
    fail(ErrorCode::kMalformedInput, "{} is {}, not {}", object.path(field), quote(name),
         row_format_names(row_formats(), " or "));
  }
  format = *found;
}

/// All keys are one text: a text for each would take a hundred times as long to read.
json prefix_to_json(const Prefix& prefix) {
  check_keys(prefix);
  return {{"block_tokens", prefix.block_tokens},
          {"key_bytes", prefix.key_bytes},
          {"keys", hex_text(prefix.keys)},
          {"cache_salt", hex_text(prefix.cache_salt)}};
}

Prefix prefix_from_json(const json& value, std::string_view what) {
  JsonObject object(value, what);
  Prefix prefix;
  prefix.block_tokens = object.integer<std::int32_t>("block_tokens", 1);
  prefix.key_bytes = object.integer<std::int32_t>("key_bytes", 1, kMaxPrefixKeyBytes);
  const std::size_t most = kMaxPrefixKeys * static_cast<std::size_t>(prefix.key_bytes);
  prefix.keys = parse_hex(object.text("keys", 2 * most), object.path("keys"));
  prefix.cache_salt =
      parse_hex(object.text("cache_salt", 2 * kMaxKeyBytes), object.path("cache_salt"));
  object.end();
  if (prefix.keys.empty() || std::ssize(prefix.keys) % prefix.key_bytes != 0) {
    fail(ErrorCode::kMalformedInput, "{}: {} bytes, expected a multiple of {} and at least one key",
         object.path("keys"), prefix.keys.size(), object.path("key_bytes"));
  }
  return prefix;
}

SequenceState take_state(JsonObject& object) {
  const std::string& name = object.text("state", 16);
  for (const SequenceState state : kStates) {
    if (sequence_state_name(state) == name) return state;
  }
  fail(ErrorCode::kMalformedInput, "{} is {}, not filling, ready or stepping", object.path("state"),
       quote(name));
}

}  // namespace

json shape_to_json(const PoolShape& shape) {
  json object;
  for_each_field(kPoolShapeFields, [&](const auto& field) {
    object[std::string(field.name)] = json_value(shape.*field.member);
  });
  return object;
}

PoolShape shape_from_json(const json& value, std::string_view what) {
  JsonObject object(value, what);
  PoolShape shape;
  for_each_field(kPoolShapeFields, [&](const auto& field) {
    take(object, field.name, field.least, shape.*field.member);
  });
  object.end();
  return shape;
}

json extents_to_json(const std::vector<Extent>& extents) {
  json array = json::array();
  for (const Extent& extent : extents) {
    array.push_back({{"begin", extent.begin}, {"end", extent.end}, {"rank", extent.rank}});
  }
  return array;
}

std::vector<Extent> extents_from_json(const json& array, std::string_view what, bool with_gaps) {
  std::vector<Extent> extents;
  extents.reserve(array.size());
  std::int64_t end = 0;
  for (const json& element : array) {
    JsonObject object(element, what);
    Extent extent;
    extent.begin = object.integer<std::int64_t>("begin", end, with_gaps ? kMaxSequenceTokens : end);
    extent.end = object.integer<std::int64_t>("end", extent.begin + 1, kMaxSequenceTokens);
    extent.rank = object.integer<int>("rank", kNoWorker, kMaxWorkers - 1);
    object.end();
    end = extent.end;
    extents.push_back(extent);
  }
  return extents;
}

void put_sequence(json& object, const SequenceInfo& sequence) {
  object["epoch"] = sequence.epoch;
  object["state"] = sequence_state_name(sequence.state);
  object["home"] = sequence.home;
  object["prompt_tokens"] = sequence.prompt_tokens;
  object["max_new_tokens"] = sequence.max_new_tokens;
  object["present_tokens"] = sequence.present_tokens;
  object["length"] = sequence.length;
  object["token"] = wire::token_text(sequence.token);
  object["missing"] = sequence.missing;
  object["extents"] = extents_to_json(sequence.extents);
  object["lost"] = extents_to_json(sequence.lost);
  object["lost_workers"] = sequence.lost_workers;
}

void take_sequence(JsonObject& object, SequenceInfo& sequence) {
  sequence.epoch = object.integer<std::uint32_t>("epoch");
  sequence.state = take_state(object);
  sequence.home = object.integer<int>("home", 0, kMaxWorkers - 1);
  sequence.prompt_tokens = object.integer<std::int64_t>("prompt_tokens", 0, kMaxSequenceTokens);
  sequence.max_new_tokens = object.integer<std::int64_t>("max_new_tokens", 0, kMaxSequenceTokens);
  sequence.present_tokens =
      object.integer<std::int64_t>("present_tokens", 0, sequence.prompt_tokens);
  sequence.length =
      object.integer<std::int64_t>("length", 0, sequence.prompt_tokens + sequence.max_new_tokens);
  sequence.token = wire::parse_token(object.text("token", 2 * sizeof(wire::Token)));
  sequence.missing = object.text("missing", wire::kMaxText);
  sequence.extents =
      extents_from_json(object.array("extents", kMaxExtents), object.path("extents"));
  sequence.lost =
      extents_from_json(object.array("lost", kMaxExtents), object.path("lost"), /*with_gaps=*/true);
  for (const json& rank : object.array("lost_workers", kMaxWorkers)) {
    if (!rank.is_number_unsigned() || rank.get<std::uint64_t>() >= kMaxWorkers) {
      fail(ErrorCode::kMalformedInput, "{}: not a rank", object.path("lost_workers"));
    }
    sequence.lost_workers.push_back(rank.get<int>());
  }
  const std::int64_t covered = sequence.extents.empty() ? 0 : sequence.extents.back().end;
  if (covered != sequence.prompt_tokens && covered != sequence.length) {
    fail(ErrorCode::kMalformedInput, "{} cover {} tokens of a prompt of {}, or of {} in all",
         object.path("extents"), covered, sequence.prompt_tokens, sequence.length);
  }
}

json parent_to_json(const Parent& parent) {
  return {{"sequence_id", id_text(parent.id)},
          {"epoch", parent.epoch},
          {"length", parent.length},
          {"token", wire::token_text(parent.token)}};
}

Parent parent_from_json(const json& value, std::string_view what) {
  JsonObject object(value, what);
  Parent parent;
  parent.id = parse_id(object.text("sequence_id", 20));
  parent.epoch = object.integer<std::uint32_t>("epoch", 1);
  parent.length = object.integer<std::int64_t>("length", 1, kMaxSequenceTokens);
  parent.token = wire::parse_token(object.text("token", 32));
  object.end();
  if (parent.id == 0) fail(ErrorCode::kMalformedInput, "{}: id 0", object.path("sequence_id"));
  return parent;
}

void put_request(json& object, const AdmitRequest& request) {
  object["prompt_tokens"] = request.prompt_tokens;
  object["max_new_tokens"] = request.max_new_tokens;
  object["spread"] = spread_policy_name(request.spread);
  if (!request.prefix.keys.empty()) object["prefix"] = prefix_to_json(request.prefix);
  if (request.parent.id != 0) object["parent"] = parent_to_json(request.parent);
}

AdmitRequest take_request(JsonObject& object) {
  AdmitRequest request;
  request.prompt_tokens = object.integer<std::int64_t>("prompt_tokens", 0, kMaxSequenceTokens);
  request.max_new_tokens = object.integer<std::int64_t>("max_new_tokens", 0, kMaxSequenceTokens);
  const std::string& spread = object.text("spread", 16);
  try {
    request.spread = parse_spread_policy(spread);
  } catch (const Error& error) {
    fail(ErrorCode::kMalformedInput, "{}: {}", object.path("spread"), error.what());
  }
  if (object.has("prefix")) {
    request.prefix = prefix_from_json(object.value("prefix"), object.path("prefix"));
  }
  if (object.has("parent")) {
    request.parent = parent_from_json(object.value("parent"), object.path("parent"));
  }
  return request;
}

void check_pool_name(std::string_view name) {
  const bool known = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
  if (name.empty() || name.size() > kMaxNameBytes || !known) {
    fail(ErrorCode::kMalformedInput, "pool name {}: not 1 .. {} letters, digits, '.', '_' and '-'",
         quote(name), kMaxNameBytes);
  }
}

void check_idempotency_key(std::string_view key) {
  if (key.size() > kMaxKeyBytes || !is_printable(key)) {
    fail(ErrorCode::kMalformedInput,
         "idempotency key {}: more than {} characters, or one that is not printable ASCII",
         quote(key), kMaxKeyBytes);
  }
}

void check_idempotency_secret(std::string_view secret) {
  if (secret.size() > kMaxSecretBytes || !is_printable(secret)) {
    fail(ErrorCode::kMalformedInput,
         "idempotency secret of {} characters: more than {}, or one that is not printable ASCII",
         secret.size(), kMaxSecretBytes);
  }
}

}  // namespace tributary
