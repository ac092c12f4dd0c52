#include "deploy/service/worker/home/pool_model.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/layer/weight_views.h"
#include "core/model/layer_weights.h"
#include "core/model/mla_shape.h"
#include "core/model/model_shape.h"
#include "core/reference/golden_case.h"
#include "deploy/runtime/page_budget.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

/// The most that `--layers` may be, for `source`.
int layer_count(const WorkerOptions& options, const std::string& source, int available) {
  if (options.layers < 0 || options.layers > available) {
    fail(ErrorCode::kInvalidArgument, "--layers is {}, {} has {}", options.layers, source,
         available);
  }
  return options.layers > 0 ? options.layers : available;
}

/// Decode only: rows of prompts come from outside.
std::shared_ptr<MlaWorkspace> decode_workspace(Backend& backend, const ModelShape& shape) {
  return std::make_shared<MlaWorkspace>(backend, shape, MlaWorkspaceOptions{.prefill = false});
}

ModelShape load_golden(const WorkerOptions& options, Backend& backend, PoolModel& model) {
  GoldenCase golden = load_golden_case(*options.model);
  golden.shape.latent_norm_eps = options.latent_norm_eps;
  (void)layer_count(options, model.name, 1);
  model.layers.push_back(std::make_unique<MlaLayer>(backend, golden.shape, golden.weights,
                                                    decode_workspace(backend, golden.shape)));
  return golden.shape;
}

/// One layer's weights are on the host at a time.
ModelShape load_checkpoint(const WorkerOptions& options, Backend& backend, PoolModel& model) {
  ModelConfig config = read_model_folder(*options.model);
  ModelShape& shape = config.shape;
  shape.latent_norm_eps = options.latent_norm_eps;
  const int layers = layer_count(options, model.name, shape.num_hidden_layers);
  const WeightFiles files(*options.model);
  const std::string_view prefix = layer_prefix(files);
  const auto workspace = decode_workspace(backend, shape);
  for (int layer = 0; layer < layers; ++layer) {
    LayerWeights weights;
    try {
      weights = load_layer_weights(files, shape, fmt::format("{}{}.", prefix, layer));
    } catch (const Error& error) {
      // The tensors are not readable, and the config says why.
      if (config.quantization.ok()) throw;
      fail(ErrorCode::kUnsupported, "{} ({})", config.quantization.message(), error.what());
    }
    model.layers.push_back(std::make_unique<MlaLayer>(backend, shape, weights, workspace));
  }
  return shape;
}

void load_heads(const GivenHeadWeights& given, Backend& backend, PoolModel& model) {
  PoolShape& served = model.served;
  if (std::cmp_not_equal(given.kv_b_proj.size(), served.layers)) {
    fail(ErrorCode::kInvalidArgument, "kv_b_proj of {} layers, the pool has {}",
         given.kv_b_proj.size(), served.layers);
  }
  const KvBShape shape{.heads = served.heads,
                       .nope = given.qk_nope_head_dim,
                       .rope = served.qk_rope_head_dim,
                       .value = given.v_head_dim,
                       .latent = served.kv_lora_rank};
  const std::int64_t expected = shape.heads * (shape.nope + shape.value) * shape.latent;
  for (std::size_t layer = 0; layer < given.kv_b_proj.size(); ++layer) {
    const std::vector<float>& weight = given.kv_b_proj[layer];
    if (shape.nope < 1 || shape.value < 1 || std::cmp_not_equal(weight.size(), expected)) {
      fail(ErrorCode::kInvalidArgument,
           "kv_b_proj of layer {} has {} values, expected {}: {} heads ({} + {}) of {}", layer,
           weight.size(), expected, shape.heads, shape.nope, shape.value, shape.latent);
    }
    model.given_heads.emplace_back(backend, shape, weight);
  }
  served.qk_nope_head_dim = given.qk_nope_head_dim;
  served.v_head_dim = given.v_head_dim;
}

/// Throws unless selections lie aligned in token records.
void check_selections(const PoolShape& shape) {
  if (shape.selected_offset() % alignof(std::int32_t) != 0) {
    fail(ErrorCode::kUnsupported,
         "--topk: a query and a row of {} and {} bytes, must be a multiple of {} together",
         shape.query_bytes(), shape.row_bytes(), alignof(std::int32_t));
  }
}

}  // namespace

PoolModel load_pool_model(const WorkerOptions& options, Backend& backend) {
  PoolModel model;
  const auto given = options.given_head_weights.lock();
  if (given && options.model) {
    fail(ErrorCode::kInvalidArgument, "kv_b_proj was given, and a model, which has its own");
  }
  if (options.model) {
    model.name = options.model->string();
    const ModelShape shape = fs::is_directory(*options.model)
                                 ? load_checkpoint(options, backend, model)
                                 : load_golden(options, backend, model);
    model.served = {
        attention_shape(mla_shape(shape), options.row_format, options.query_dtype, options.topk)};
    model.served.qk_nope_head_dim = shape.qk_nope_head_dim;
    model.served.v_head_dim = shape.v_head_dim;
    model.served.hidden_size = shape.hidden_size;
    model.served.latent_norm_eps = static_cast<float>(shape.latent_norm_eps);
    model.served.layers = static_cast<int>(model.layers.size());
  } else {
    const MlaShape shape =
        options.given_shape ? *options.given_shape : find_mla_shape(options.shape);
    validate(shape);
    const bool preset = !options.given_shape && is_mla_preset(options.shape);
    model.name = shape.name;
    model.served = {attention_shape(shape, options.row_format, options.query_dtype, options.topk)};
    // A preset is for measurements, with any number of layers; a file describes the model that will
    // run.
    model.served.layers =
        preset
            ? std::max(options.layers, 1)
            : layer_count(options, options.given_shape ? shape.name : options.shape, shape.layers);
    if (given) load_heads(*given, backend, model);
  }
  const int topk = model.served.topk;
  model.served.leaf_tokens =
      options.leaf_tokens > 0 ? options.leaf_tokens : default_leaf_tokens(topk);
  if (topk > 0) check_selections(model.served);
  model.pages = page_budget(options.kv_gib, model.served.layers, model.served.row());
  return model;
}

}  // namespace tributary
