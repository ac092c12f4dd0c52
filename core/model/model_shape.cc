// Bounds of a model's dimensions, the softmax scale, and the presets.
#include "core/model/model_shape.h"

#include <array>
#include <cmath>

#include "core/base/error.h"
#include "core/model/model_limits.h"
#include "core/model/rope.h"

namespace tributary {
namespace {

// Generous multiples of published values (hidden 7168, ranks 1536 and 512, head dimensions 192,
// 256k positions), small enough that every product of a weight's dimensions (heads * (nope + rope)
// <= 2^25) fits an int.
constexpr int kMaxHiddenSize = 1 << 20;
constexpr int kMaxRank = 1 << 16;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxPositions = 1 << 30;
constexpr double kMaxTheta = 1e12;

void check_int(std::string_view field, int value, int low, int high) {
  if (value < low || value > high) {
    fail(ErrorCode::kInvalidArgument, "{} is {}, must be in {} .. {}", field, value, low, high);
  }
}

/// Written so that NaN fails too.
void check_real(std::string_view field, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    fail(ErrorCode::kInvalidArgument, "{} is {}, must be in {} .. {}", field, value, low, high);
  }
}

void check_yarn(const YarnScaling& yarn) {
  check_real("rope_scaling factor", yarn.factor, 1, kMaxYarn);
  check_real("rope_scaling beta_slow", yarn.beta_slow, 1e-6, kMaxYarn);
  // Equal values are valid: Kimi K2 publishes 1 and 1, a step instead of a ramp.
  check_real("rope_scaling beta_fast", yarn.beta_fast, yarn.beta_slow, kMaxYarn);
  check_real("rope_scaling mscale", yarn.mscale, 0, kMaxMscale);
  check_real("rope_scaling mscale_all_dim", yarn.mscale_all_dim, 0, kMaxMscale);
  check_int("rope_scaling original_max_position_embeddings", yarn.original_max_position_embeddings,
            1, kMaxPositions);
  if (yarn.mscale != yarn.mscale_all_dim && yarn.factor > 1) {
    fail(ErrorCode::kUnsupported,
         "rope_scaling mscale is {} and mscale_all_dim {}: only equal values, which leave cos and "
         "sin unscaled, are supported",
         yarn.mscale, yarn.mscale_all_dim);
  }
}

ModelShape deepseek_shape(std::string_view name, int hidden, int layers, int heads, int q_lora,
                          double mscale) {
  return ModelShape{.name = std::string(name),
                    .hidden_size = hidden,
                    .num_hidden_layers = layers,
                    .num_attention_heads = heads,
                    .q_lora_rank = q_lora,
                    .kv_lora_rank = 512,
                    .qk_nope_head_dim = 128,
                    .qk_rope_head_dim = 64,
                    .v_head_dim = 128,
                    .max_position_embeddings = 163840,
                    .rope = {.theta = 10000,
                             .yarn = YarnScaling{.factor = 40,
                                                 .beta_fast = 32,
                                                 .beta_slow = 1,
                                                 .mscale = mscale,
                                                 .mscale_all_dim = mscale,
                                                 .original_max_position_embeddings = 4096}}};
}

ModelShape kimi_k2_shape() {
  ModelShape shape = deepseek_shape("kimi-k2", 7168, 61, 64, 1536, 1.0);
  shape.max_position_embeddings = 131072;
  shape.rope.theta = 50000;
  shape.rope.yarn->factor = 32;
  shape.rope.yarn->beta_fast = 1;
  return shape;
}

ModelShape kimi_k25_shape() {
  ModelShape shape = deepseek_shape("kimi-k2.5", 7168, 61, 64, 1536, 1.0);
  shape.max_position_embeddings = 262144;
  shape.rope.theta = 50000;
  shape.rope.yarn->factor = 64;
  return shape;
}

ModelShape glm_47_flash_shape() {
  return ModelShape{.name = "glm-4.7-flash",
                    .hidden_size = 2048,
                    .num_hidden_layers = 47,
                    .num_attention_heads = 20,
                    .q_lora_rank = 768,
                    .kv_lora_rank = 512,
                    .qk_nope_head_dim = 192,
                    .qk_rope_head_dim = 64,
                    .v_head_dim = 256,
                    .max_position_embeddings = 202752,
                    .rope = {.theta = 1'000'000, .yarn = {}}};
}

}  // namespace

double mla_softmax_scale(int qk_head_dim, const std::optional<YarnScaling>& yarn) {
  const double scale = std::pow(qk_head_dim, -0.5);
  if (!yarn || yarn->mscale_all_dim == 0) return scale;
  const double m = 0.1 * yarn->mscale_all_dim * std::log(yarn->factor) + 1;
  return scale * m * m;
}

double ModelShape::softmax_scale() const {
  return mla_softmax_scale(qk_head_dim(), rope.yarn);
}

void validate(const ModelShape& shape) {
  check_int("hidden_size", shape.hidden_size, 1, kMaxHiddenSize);
  check_int("num_hidden_layers", shape.num_hidden_layers, 1, kMaxLayers);
  check_int("num_attention_heads", shape.num_attention_heads, 1, kMaxHeads);
  check_int("q_lora_rank", shape.q_lora_rank, 0, kMaxRank);
  check_int("kv_lora_rank", shape.kv_lora_rank, 1, kMaxRank);
  check_int("qk_nope_head_dim", shape.qk_nope_head_dim, 1, kMaxHeadDim);
  check_int("qk_rope_head_dim", shape.qk_rope_head_dim, 2, kMaxHeadDim);
  check_int("v_head_dim", shape.v_head_dim, 1, kMaxHeadDim);
  check_int("max_position_embeddings", shape.max_position_embeddings, 1, kMaxPositions);
  if (shape.qk_rope_head_dim % 2 != 0) {
    fail(ErrorCode::kInvalidArgument, "qk_rope_head_dim is {}, must be even: RoPE rotates pairs",
         shape.qk_rope_head_dim);
  }
  if (!(shape.latent_norm_eps > 0 && shape.latent_norm_eps < 1)) {
    fail(ErrorCode::kInvalidArgument, "latent_norm_eps is {}, must be above 0 and below 1",
         shape.latent_norm_eps);
  }
  check_real("rope_theta", shape.rope.theta, 0, kMaxTheta);
  if (shape.rope.yarn) check_yarn(*shape.rope.yarn);
  // Each value may be in its range although the YaRN ramp is empty.
  (void)rope_frequencies(shape.rope, shape.qk_rope_head_dim);
}

std::span<const ModelShape> model_presets() {
  // Values of the config.json that are published with deepseek-ai/DeepSeek-V3, DeepSeek-V2,
  // DeepSeek-V2-Lite, moonshotai/Kimi-K2-Instruct, Kimi-K2.5 and zai-org/GLM-4.7-Flash.
  static const std::array<ModelShape, 6> presets = {
      deepseek_shape("deepseek-v3", 7168, 61, 128, 1536, 1.0),
      deepseek_shape("deepseek-v2", 5120, 60, 128, 1536, 0.707),
      deepseek_shape("deepseek-v2-lite", 2048, 27, 16, 0, 0.707),
      kimi_k2_shape(),
      kimi_k25_shape(),
      glm_47_flash_shape(),
  };
  return presets;
}

}  // namespace tributary
