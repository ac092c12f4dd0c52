// A pool with weights, and one with W_UK and W_UV alone: queries before W_UK, values after W_UV.
// The golden outputs of hidden states are checked by tests/deploy/service/tier_test.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/layer/weight_views.h"
#include "core/model/safetensors.h"
#include "core/reference/golden_case.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/worker/home/pool_model.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/model/model_files.h"
#include "tests/core/reference/golden_files.h"
#include "tests/deploy/service/worker/pool_user.h"

namespace tributary::test {
namespace {

WorkerOptions golden_options() {
  WorkerOptions options = small_options();
  options.model = golden_file("tiny");
  options.layers = 0;
  options.row_format = RowFormat::kF32;
  options.query_dtype = DType::kF32;
  return options;
}

TEST(ServiceForward, GivenWeightsHaveToFitTheShape) {
  const auto backend = make_backend("cpu", 1);
  const WorkerOptions plain = small_options();
  const PoolModel without = load_pool_model(plain, *backend);
  const auto layers = static_cast<std::size_t>(without.served.layers);
  const auto values = static_cast<std::size_t>(without.served.heads * (24 + 8)) *
                      static_cast<std::size_t>(without.served.kv_lora_rank);
  const auto fitting = [&] {
    return GivenHeadWeights{.qk_nope_head_dim = 24,
                            .v_head_dim = 8,
                            .kv_b_proj = std::vector(layers, std::vector<float>(values, 1))};
  };
  const auto load = [&](GivenHeadWeights given, WorkerOptions options) {
    const auto kept = std::make_shared<const GivenHeadWeights>(std::move(given));
    options.given_head_weights = kept;
    return load_pool_model(options, *backend);
  };
  const PoolModel model = load(fitting(), plain);
  EXPECT_EQ(model.served.qk_nope_head_dim, 24);
  EXPECT_EQ(model.served.v_head_dim, 8);
  EXPECT_EQ(model.served.hidden_size, 0);

  const auto refusal = [&](GivenHeadWeights given, const WorkerOptions& options) {
    return message_of([&] { (void)load(std::move(given), options); });
  };
  EXPECT_EQ(refusal(fitting(), golden_options()),
            "kv_b_proj was given, and a model, which has its own");
  GivenHeadWeights given = fitting();
  given.kv_b_proj.emplace_back();
  EXPECT_EQ(refusal(given, plain),
            fmt::format("kv_b_proj of {} layers, the pool has {}", layers + 1, layers));
  given = fitting();
  given.kv_b_proj.back().pop_back();
  EXPECT_EQ(refusal(given, plain)
                .find(fmt::format("kv_b_proj of layer {} has {} values, expected {}", layers - 1,
                                  values - 1, values)),
            0U);
  given = fitting();
  given.v_head_dim = 0;
  EXPECT_EQ(code_of([&] { (void)load(given, plain); }), ErrorCode::kInvalidArgument);
}

TEST(ServiceForward, TheLatentNormsHaveTheEpsThatIsAskedFor) {
  const auto backend = make_backend("cpu", 1);
  WorkerOptions options = golden_options();
  // Whatever the config says of the norms around the attention.
  EXPECT_EQ(load_pool_model(options, *backend).served.latent_norm_eps, 1e-6F);
  options.latent_norm_eps = 1e-5;
  const PoolModel model = load_pool_model(options, *backend);
  EXPECT_EQ(model.served.latent_norm_eps, 1e-5F);
  EXPECT_EQ(model.layers[0]->shape().latent_norm_eps, 1e-5);
  EXPECT_EQ(load_pool_model(small_options(), *backend).served.latent_norm_eps, 0);
}

/// A folder with the weights of the tiny golden file as another model's, and its config.
class TinyFolder {
 public:
  /// `prefix` stands before `self_attn.`.
  explicit TinyFolder(std::string_view prefix, std::string_view replaced = "",
                      std::string_view with = "") {
    const std::filesystem::path path = golden_file("tiny");
    std::ifstream file(path, std::ios::binary);
    const std::string blob(std::istreambuf_iterator<char>(file), {});
    std::uint64_t length = 0;
    std::memcpy(&length, blob.data(), sizeof length);
    std::string header = blob.substr(sizeof length, length);
    const std::string attention = "\"self_attn.";
    for (auto at = header.find(attention); at != std::string::npos;
         at = header.find(attention, at + prefix.size() + attention.size())) {
      header.insert(at + 1, prefix);
    }
    if (const auto at = header.find(replaced); !replaced.empty() && at != std::string::npos) {
      header.replace(at, replaced.size(), with);
    }
    folder_.write("model.safetensors",
                  safetensors_blob(header, std::string_view(blob).substr(8 + length)));
    config_ = nlohmann::json::parse(SafetensorsFile(path).header().metadata.at("config"));
  }

  WorkerOptions options(const nlohmann::json& quantization) {
    nlohmann::json text = config_;
    text["quantization_config"] = quantization;
    folder_.write("config.json", nlohmann::json{{"text_config", text}}.dump());
    WorkerOptions options = golden_options();
    options.model = folder_.path();
    return options;
  }

 private:
  TemporaryFolder folder_;
  nlohmann::json config_;
};

TEST(ServiceForward, TheTensorsOfAFolderDecideWhetherItsQuantisationIsRead) {
  const auto backend = make_backend("cpu", 1);
  const nlohmann::json packed = {{"quant_method", "compressed-tensors"},
                                 {"format", "pack-quantized"}};
  // Kimi K2.5's attention is bf16 beside int4 experts, under names of a model that sees.
  TinyFolder sees("language_model.model.layers.0.");
  const PoolModel model = load_pool_model(sees.options(packed), *backend);
  const PoolModel golden = load_pool_model(golden_options(), *backend);
  EXPECT_EQ(model.served, golden.served);
  TinyFolder quantised("model.layers.0.", "o_proj.weight", "o_proj.weight_packed");
  const std::string message =
      message_of([&] { (void)load_pool_model(quantised.options(packed), *backend); });
  EXPECT_NE(message.find("quant_method is '\"compressed-tensors\"'"), std::string::npos) << message;
  EXPECT_NE(message.find("o_proj.weight_packed"), std::string::npos) << message;
}

/// The layer's queries before W_UK, with R rotated: W_UK = 1 leaves them as they are.
std::vector<float> unabsorbed_queries(const GoldenCase& golden, Backend& backend,
                                      std::span<const float> hidden,
                                      std::span<const std::int64_t> positions) {
  const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  const ModelShape& shape = golden.shape;
  const std::int64_t nope = shape.qk_nope_head_dim;
  LayerWeights weights = golden.weights;
  for (std::int64_t h = 0; h < shape.num_attention_heads; ++h) {
    for (std::int64_t n = 0; n < nope; ++n) {
      for (std::int64_t c = 0; c < shape.kv_lora_rank; ++c) {
        weights.kv_b_proj[size((h * (nope + shape.v_head_dim) + n) * shape.kv_lora_rank + c)] =
            c == n ? 1 : 0;
      }
    }
  }
  MlaLayer layer(
      backend, shape, weights,
      std::make_shared<MlaWorkspace>(backend, shape, MlaWorkspaceOptions{.prefill = false}));
  const std::int64_t width = shape.latent_dim();
  const std::size_t heads = positions.size() * size(shape.num_attention_heads);
  std::vector<float> absorbed(heads * size(width));
  std::vector<float> rows(positions.size() * size(width));
  layer.project(static_cast<std::int64_t>(positions.size()), hidden.data(), positions,
                absorbed.data(), rows.data());
  std::vector<float> queries;
  for (std::size_t h = 0; h < heads; ++h) {
    const float* head = absorbed.data() + h * size(width);
    queries.insert(queries.end(), head, head + nope);
    queries.insert(queries.end(), head + shape.kv_lora_rank, head + width);
  }
  return queries;
}

TEST(ServiceForward, UnabsorbedQueriesGiveTheBitsOfForward) {
  const GoldenCase golden = load_golden_case(golden_file("tiny"));
  const ModelShape& model = golden.shape;
  const auto backend = make_backend("cpu", 1);
  constexpr std::size_t kTokens = 2;
  const auto width = static_cast<std::size_t>(model.hidden_size);
  const std::span hidden = std::span(golden.hidden_states).first(kTokens * width);
  const std::vector<std::int64_t> positions{100, 101};
  MlaLayer layer(
      *backend, model, golden.weights,
      std::make_shared<MlaWorkspace>(*backend, model, MlaWorkspaceOptions{.prefill = false}));
  const auto row_width = static_cast<std::size_t>(model.latent_dim());
  std::vector<float> rows(kTokens * row_width);
  layer.latent_rows(kTokens, hidden.data(), positions, rows.data());
  const std::vector<float> queries = unabsorbed_queries(golden, *backend, hidden, positions);
  const auto o_proj =
      backend->make_weight(matrix(golden.weights.o_proj, {}, model.hidden_size,
                                  std::int64_t{model.num_attention_heads} * model.v_head_dim));
  for (const int workers : {1, 3}) {
    ServicePool pool(workers, golden_options());
    PoolUser user(pool);
    const UserSequence a = user.start(1, 100, 8);
    const std::vector<PoolUser::Part> parts{{&a, kTokens, 0}};
    const auto run = [&](wire::LayerMode mode, const std::vector<std::byte>& payload) {
      wire::LayerRequest round = user.round_header(parts);
      round.mode = mode;
      const auto result =
          user.client.wait_round(user.client.send_round(user.peer(a.info.home, a), round, payload));
      EXPECT_EQ(result.reply.items.at(0), ErrorCode::kOk) << result.reply.message;
      return result.floats();
    };
    const auto bytes = std::as_bytes(hidden);
    const std::vector<float> expected =
        run(wire::LayerMode::kForward, {bytes.begin(), bytes.end()});
    std::vector<std::byte> payload;
    const auto append = [&](const std::vector<float>& values, std::size_t token) {
      const auto part = std::as_bytes(
          std::span(values).subspan(token * values.size() / kTokens, values.size() / kTokens));
      payload.insert(payload.end(), part.begin(), part.end());
    };
    for (std::size_t t = 0; t < kTokens; ++t) {
      append(queries, t);
      append(rows, t);
    }
    const std::vector<float> values = run(wire::LayerMode::kAttendUnabsorbed, payload);
    const StateShape record{.heads = model.num_attention_heads, .width = model.v_head_dim};
    ASSERT_EQ(values.size(), kTokens * record.record_floats());
    std::vector<float> output(expected.size());
    backend->call(GemmArgs{.weight = o_proj.get(),
                           .tokens = kTokens,
                           .x = values.data(),
                           .x_token_stride = static_cast<std::int64_t>(record.record_floats()),
                           .y = output.data(),
                           .y_token_stride = model.hidden_size});
    EXPECT_EQ(output, expected) << workers << " workers";
  }
}

TEST(ServiceForward, ProjectedValuesAreWuvOfTheStates) {
  const GoldenCase golden = load_golden_case(golden_file("tiny"));
  ServicePool pool(2, golden_options());
  PoolUser user(pool);
  const UserSequence a = user.start(1, 100, 8);
  const std::vector<PoolUser::Part> parts{{&a, 2, 0}};
  const auto states = user.attend(parts).floats();
  wire::LayerRequest round = user.round_header(parts);
  round.mode = wire::LayerMode::kAttendProjected;
  const auto result = user.client.wait_round(
      user.client.send_round(user.peer(a.info.home, a), round, user.round_payload(parts)));
  ASSERT_EQ(result.reply.items.at(0), ErrorCode::kOk) << result.reply.message;
  const auto values = result.floats();

  const int heads = golden.shape.num_attention_heads;
  const int value = golden.shape.v_head_dim;
  const int latent = golden.shape.kv_lora_rank;
  const int nope = golden.shape.qk_nope_head_dim;
  const std::size_t record = user.shape().state_shape().record_floats();
  ASSERT_EQ(values.size(), static_cast<std::size_t>(2 * heads * value));
  std::vector<double> expected;
  for (std::size_t t = 0; t < 2; ++t) {
    for (int h = 0; h < heads; ++h) {
      for (int v = 0; v < value; ++v) {
        double sum = 0;
        for (int c = 0; c < latent; ++c) {
          const int row = h * (nope + value) + nope + v;
          sum += double{golden.weights.kv_b_proj[static_cast<std::size_t>(row * latent + c)]} *
                 double{states[t * record + static_cast<std::size_t>(h * latent + c)]};
        }
        expected.push_back(sum);
      }
    }
  }
  expect_close("values", std::span<const float>(values), expected, value, 1e-5, 1e-4);
}

}  // namespace
}  // namespace tributary::test
