#include "deploy/tier/sequence_json.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "comm/wire/access_token.h"
#include "core/base/dtype.h"
#include "core/base/quote.h"

namespace tributary {

using nlohmann::json;

namespace {

constexpr std::array kStates{SequenceState::kFilling, SequenceState::kReady,
                             SequenceState::kStepping};
// What rows and queries may be made of today.
constexpr std::array kElementTypes{DType::kF32, DType::kBF16};
// Of any dimension; products of two stay far from overflow.
constexpr std::int32_t kMaxDimension = 1 << 20;

std::uint8_t take_dtype(JsonObject& object, std::string_view field) {
  const std::string& name = object.text(field, 16);
  for (const DType type : kElementTypes) {
    if (dtype_name(type) == name) return static_cast<std::uint8_t>(type);
  }
  fail(ErrorCode::kMalformedInput, "{} is {}, not bf16 or f32", object.path(field), quote(name));
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

json shape_to_json(const wire::Shape& shape) {
  return {{"heads", shape.heads},
          {"kv_lora_rank", shape.kv_lora_rank},
          {"qk_rope_head_dim", shape.qk_rope_head_dim},
          {"v_head_dim", shape.v_head_dim},
          {"hidden_size", shape.hidden_size},
          {"layers", shape.layers},
          {"leaf_tokens", shape.leaf_tokens},
          {"row_dtype", dtype_name(static_cast<DType>(shape.row_dtype))},
          {"query_dtype", dtype_name(static_cast<DType>(shape.query_dtype))},
          {"softmax_scale", shape.softmax_scale}};
}

wire::Shape shape_from_json(const json& value, std::string_view what) {
  JsonObject object(value, what);
  wire::Shape shape;
  const auto dimension = [&](std::string_view field, std::int32_t min) {
    return object.integer<std::int32_t>(field, min, kMaxDimension);
  };
  shape.heads = dimension("heads", 1);
  shape.kv_lora_rank = dimension("kv_lora_rank", 1);
  shape.qk_rope_head_dim = dimension("qk_rope_head_dim", 0);
  shape.v_head_dim = dimension("v_head_dim", 0);
  shape.hidden_size = dimension("hidden_size", 0);
  shape.layers = dimension("layers", 1);
  shape.leaf_tokens = dimension("leaf_tokens", 1);
  shape.row_dtype = take_dtype(object, "row_dtype");
  shape.query_dtype = take_dtype(object, "query_dtype");
  shape.softmax_scale = static_cast<float>(object.number("softmax_scale"));
  if (!std::isfinite(shape.softmax_scale)) {
    fail(ErrorCode::kMalformedInput, "{} does not fit a float", object.path("softmax_scale"));
  }
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

std::vector<Extent> extents_from_json(const json& array, std::string_view what) {
  std::vector<Extent> extents;
  extents.reserve(array.size());
  std::int64_t end = 0;
  for (const json& element : array) {
    JsonObject object(element, what);
    Extent extent;
    extent.begin = object.integer<std::int64_t>("begin", end, end);
    extent.end = object.integer<std::int64_t>("end", end + 1, kMaxSequenceTokens);
    extent.rank = object.integer<int>("rank", 0, kMaxWorkers - 1);
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
  object["length"] = sequence.length;
  object["token"] = wire::token_text(sequence.token);
  object["missing"] = sequence.missing;
  object["extents"] = extents_to_json(sequence.extents);
}

void take_sequence(JsonObject& object, SequenceInfo& sequence) {
  sequence.epoch = object.integer<std::uint32_t>("epoch");
  sequence.state = take_state(object);
  sequence.home = object.integer<int>("home", 0, kMaxWorkers - 1);
  sequence.prompt_tokens = object.integer<std::int64_t>("prompt_tokens", 0, kMaxSequenceTokens);
  sequence.max_new_tokens = object.integer<std::int64_t>("max_new_tokens", 0, kMaxSequenceTokens);
  sequence.length =
      object.integer<std::int64_t>("length", 0, sequence.prompt_tokens + sequence.max_new_tokens);
  sequence.token = wire::parse_token(object.text("token", 2 * sizeof(wire::Token)));
  sequence.missing = object.text("missing", wire::kMaxText);
  sequence.extents =
      extents_from_json(object.array("extents", kMaxExtents), object.path("extents"));
  const std::int64_t covered = sequence.extents.empty() ? 0 : sequence.extents.back().end;
  if (covered != sequence.prompt_tokens) {
    fail(ErrorCode::kMalformedInput, "{} cover {} tokens of a prompt of {}", object.path("extents"),
         covered, sequence.prompt_tokens);
  }
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
  const bool printable =
      std::all_of(key.begin(), key.end(), [](char c) { return c >= 0x21 && c <= 0x7e; });
  if (key.size() > kMaxKeyBytes || !printable) {
    fail(ErrorCode::kMalformedInput,
         "idempotency key {}: more than {} characters, or one that is not printable ASCII",
         quote(key), kMaxKeyBytes);
  }
}

}  // namespace tributary
