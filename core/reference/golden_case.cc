// Reads and checks a golden file: metadata, weights, inputs, then each group's expected values.
#include "core/reference/golden_case.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/base/strict_json.h"
#include "core/model/safetensors.h"

namespace tributary {
namespace {

constexpr std::string_view kFormat = "mla-golden-1";
// Far beyond any golden file; keeps the products of dimensions inside 64 bits.
constexpr std::int64_t kMaxCaseCount = 1 << 20;

struct GroupKind {
  std::string_view name;
  RowFormat row_format;
};
constexpr std::array<GroupKind, 2> kGroups = {
    {{"f32", RowFormat::kF32}, {"bf16cache", RowFormat::kBF16}}};

const std::string& metadata(const SafetensorsFile& file, std::string_view key) {
  const auto& entries = file.header().metadata;
  const auto found = entries.find(key);
  if (found == entries.end()) {
    fail(ErrorCode::kMalformedInput, "{}: metadata `{}` is missing, so this is no golden file",
         file.path().string(), key);
  }
  return found->second;
}

/// A piece of metadata that is a JSON object.
nlohmann::json object(const SafetensorsFile& file, std::string_view key) {
  nlohmann::json json = parse_strict_json(
      metadata(file, key), fmt::format("{}: metadata `{}`", file.path().string(), key));
  if (!json.is_object()) {
    fail(ErrorCode::kMalformedInput, "{}: metadata `{}` is no JSON object", file.path().string(),
         key);
  }
  return json;
}

int count(const SafetensorsFile& file, const nlohmann::json& json, const char* key,
          std::int64_t minimum) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer() || *found < minimum ||
      *found > kMaxCaseCount) {
    fail(ErrorCode::kMalformedInput, "{}: metadata: {} must be an integer from {} to {}",
         file.path().string(), key, minimum, kMaxCaseCount);
  }
  return found->get<int>();
}

/// The dimensions of a case are named alike in every kind of golden file.
template <typename Case>
void read_case(const SafetensorsFile& file, Case& golden) {
  const nlohmann::json json = object(file, "case");
  const auto name = json.find("name");
  if (name == json.end() || !name->is_string()) {
    fail(ErrorCode::kMalformedInput, "{}: metadata `case`: name must be a string",
         file.path().string());
  }
  golden.name = name->get<std::string>();
  golden.batch = count(file, json, "batch", 1);
  golden.prefill_len = count(file, json, "prefill_len", 1);
  golden.decode_steps = count(file, json, "decode_steps", 0);
}

/// The file states the softmax scale of its values; our formula must give the same.
void check_softmax_scale(const SafetensorsFile& file, const ModelShape& shape) {
  const std::string& text = metadata(file, "softmax_scale");
  const nlohmann::json json =
      parse_strict_json(text, fmt::format("{}: metadata `softmax_scale`", file.path().string()));
  const double expected = json.is_number() ? json.get<double>() : std::nan("");
  const double ours = shape.softmax_scale();
  // Both sides are a few operations in double, whose rounding may differ: 16 ulp is generous.
  if (!(std::abs(ours - expected) <= 16 * 0x1p-52 * ours)) {
    fail(ErrorCode::kMalformedInput,
         "{}: metadata `softmax_scale` is {}, but the configuration gives {}", file.path().string(),
         quote(text), ours);
  }
}

bool has_group(const SafetensorsFile& file, std::string_view group) {
  const std::string prefix = fmt::format("{}.", group);
  const auto& tensors = file.header().tensors;
  const auto first = tensors.lower_bound(prefix);
  return first != tensors.end() && first->first.starts_with(prefix);
}

GoldenGroup load_group(const SafetensorsFile& file, const GoldenCase& golden,
                       const GroupKind& kind) {
  const auto load = [&](std::string_view name, std::initializer_list<std::int64_t> dimensions) {
    const std::vector<std::int64_t> shape(dimensions);
    return to_doubles(file.tensor(fmt::format("{}.{}", kind.name, name), shape));
  };
  const std::int64_t batch = golden.batch;
  const std::int64_t prefill = golden.prefill_len;
  const std::int64_t steps = golden.decode_steps;
  const std::int64_t tokens = golden.tokens();
  const std::int64_t hidden = golden.shape.hidden_size;
  const std::int64_t heads = golden.shape.num_attention_heads;
  const std::int64_t rank = golden.shape.kv_lora_rank;
  const std::int64_t rope = golden.shape.qk_rope_head_dim;
  GoldenGroup group;
  group.name = kind.name;
  group.row_format = kind.row_format;
  group.prefill_output = load("prefill.output", {batch, prefill, hidden});
  group.decode_output = load("decode.output", {batch, steps, hidden});
  group.cache_kv = load("cache.kv", {batch, tokens, rank});
  group.cache_pe = load("cache.pe", {batch, tokens, rope});
  group.decode_q_absorbed = load("decode.q_nope_absorbed", {batch, steps, heads, rank});
  group.decode_q_pe = load("decode.q_pe", {batch, steps, heads, rope});
  group.decode_lse = load("decode.lse", {batch, steps, heads});
  group.decode_latent = load("decode.latent", {batch, steps, heads, rank});
  return group;
}

}  // namespace

GoldenCase load_golden_case(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  if (const std::string& format = metadata(file, "format"); format != kFormat) {
    fail(ErrorCode::kUnsupported, "{}: format {}, only `{}` is known", path.string(), quote(format),
         kFormat);
  }
  GoldenCase golden;
  golden.path = path;
  golden.shape = parse_model_config(metadata(file, "config"),
                                    fmt::format("{}: metadata `config`", path.string()));
  check_softmax_scale(file, golden.shape);
  read_case(file, golden);
  golden.weights = load_layer_weights(WeightFiles(path), golden.shape, "");
  const std::array<std::int64_t, 3> hidden_shape = {golden.batch, golden.tokens(),
                                                    golden.shape.hidden_size};
  golden.hidden_states = to_floats(file.tensor("input.hidden_states", hidden_shape));
  for (const GroupKind& kind : kGroups) {
    if (has_group(file, kind.name)) golden.groups.push_back(load_group(file, golden, kind));
  }
  if (golden.groups.empty()) {
    fail(ErrorCode::kMalformedInput, "{}: neither group of expected values, `f32` or `bf16cache`",
         path.string());
  }
  return golden;
}

std::optional<GoldenSelection> find_golden_selection(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  if (!has_group(file, "fp8")) return {};
  GoldenSelection golden;
  read_case(file, golden);
  const nlohmann::json config = object(file, "config");
  golden.heads = count(file, config, "num_attention_heads", 1);
  golden.kv_lora_rank = count(file, config, "kv_lora_rank", 1);
  golden.qk_rope_head_dim = count(file, config, "qk_rope_head_dim", 0);
  golden.topk = count(file, config, "index_topk", 1);
  const std::string& scale = metadata(file, "softmax_scale");
  const nlohmann::json number = parse_strict_json(scale, path.string() + ": `softmax_scale`");
  golden.softmax_scale = number.is_number() ? number.get<double>() : 0;
  if (!(golden.softmax_scale > 0)) {
    fail(ErrorCode::kMalformedInput, "{}: metadata `softmax_scale` is {}, must be positive",
         path.string(), quote(scale));
  }
  const auto tensor = [&](std::string_view name,
                          std::initializer_list<std::int64_t> dimensions) -> const TensorView& {
    const std::vector<std::int64_t> shape(dimensions);
    return file.tensor(fmt::format("fp8.{}", name), shape);
  };
  const std::int64_t batch = golden.batch;
  const std::int64_t steps = golden.decode_steps;
  const std::int64_t heads = golden.heads;
  const std::int64_t rank = golden.kv_lora_rank;
  const std::int64_t width = rank + golden.qk_rope_head_dim;
  const RowLayout layout{RowFormat::kFp8DsMla, golden.kv_lora_rank, golden.qk_rope_head_dim};
  check_row_layout(layout);
  const TensorView& rows =
      tensor("cache.rows", {batch, golden.tokens(), static_cast<std::int64_t>(layout.bytes())});
  golden.rows.resize(static_cast<std::size_t>(batch * golden.tokens() * width));
  golden.stored.assign(rows.bytes.begin(), rows.bytes.end());
  layout.decode(golden.stored.data(), golden.rows);
  const std::int64_t rope = golden.qk_rope_head_dim;
  const auto plain = [&](const char* name, std::int64_t columns) {
    const std::vector<std::int64_t> shape{batch, golden.tokens(), columns};
    return to_floats(file.tensor(name, shape));
  };
  const std::vector<float> kv = plain("plain.cache.kv", rank);
  const std::vector<float> pe = plain("plain.cache.pe", rope);
  for (std::int64_t row = 0; row < batch * golden.tokens(); ++row) {
    golden.plain_rows.insert(golden.plain_rows.end(), kv.begin() + row * rank,
                             kv.begin() + (row + 1) * rank);
    golden.plain_rows.insert(golden.plain_rows.end(), pe.begin() + row * rope,
                             pe.begin() + (row + 1) * rope);
  }
  golden.query = to_floats(tensor("decode.query", {batch, steps, heads, width}));
  golden.lse = to_doubles(tensor("decode.lse", {batch, steps, heads}));
  golden.latent = to_doubles(tensor("decode.latent", {batch, steps, heads, rank}));
  golden.dense_lse = to_doubles(tensor("dense.lse", {batch, steps, heads}));
  golden.dense_latent = to_doubles(tensor("dense.latent", {batch, steps, heads, rank}));
  for (const double position :
       to_doubles(tensor("decode.selected", {batch, steps, std::int64_t{golden.topk}}))) {
    golden.selected.push_back(static_cast<std::int32_t>(position));
  }
  const auto topk = static_cast<std::size_t>(golden.topk);
  for (std::size_t i = 0; i < golden.selected.size(); ++i) {
    const std::int32_t here = golden.selected[i];
    const std::int64_t position = golden.prefill_len + static_cast<std::int64_t>(i / topk) % steps;
    const bool first = i % topk == 0;
    const std::int32_t before = first ? -1 : golden.selected[i - 1];
    const bool behind_the_last = !first && before == -1;
    if (here == -1 || (here > before && here <= position && !behind_the_last)) continue;
    fail(ErrorCode::kMalformedInput,
         "{}: fp8.decode.selected: {} after {}, must be ascending positions to {}, -1 behind them",
         path.string(), here, before, position);
  }
  return golden;
}

}  // namespace tributary
