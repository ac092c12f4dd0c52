// A backend that forwards every operation and measures its time.
#include "bench/mla_step.h"

#include <algorithm>
#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <unordered_map>
#include <utility>
#include <variant>

#include "core/base/dtype.h"
#include "core/layer/mla_layer.h"
#include "core/model/layer_weights.h"
#include "core/model/mla_shape.h"
#include "core/model/model_shape.h"
#include "deploy/app/bench/decode_case.h"

namespace tributary::bench {
namespace {

/// bf16 values stored as fp32, as a published bf16 checkpoint is loaded.
std::vector<float> random_weight(std::int64_t rows, std::int64_t cols) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.02F);
  std::array<float, 4096> table{};
  for (float& value : table) value = to_float(to_bf16(normal(random)));
  std::vector<float> out(static_cast<std::size_t>(rows * cols));
  for (float& value : out) value = table[random() % table.size()];
  return out;
}

LayerWeights random_weights(const ModelShape& shape) {
  const std::int64_t heads = shape.num_attention_heads;
  const auto vector_of = [](std::int64_t size) {
    return std::vector<float>(static_cast<std::size_t>(size), 1.0F);
  };
  LayerWeights weights;
  weights.q_a_proj = random_weight(shape.q_lora_rank, shape.hidden_size);
  weights.q_a_layernorm = vector_of(shape.q_lora_rank);
  weights.q_b_proj = random_weight(heads * shape.qk_head_dim(), shape.q_lora_rank);
  weights.kv_a_proj = random_weight(shape.latent_dim(), shape.hidden_size);
  weights.kv_a_layernorm = vector_of(shape.kv_lora_rank);
  weights.kv_b_proj =
      random_weight(heads * (shape.qk_nope_head_dim + shape.v_head_dim), shape.kv_lora_rank);
  weights.o_proj = random_weight(shape.hidden_size, heads * shape.v_head_dim);
  return weights;
}

}  // namespace

class MlaStep::Timed final : public Backend {
 public:
  Timed(Backend& backend, Clock clock) : backend_(backend), clock_(clock) {}

  std::vector<Phase> phases;
  std::unordered_map<const Weight*, std::string> names;

  [[nodiscard]] std::string_view name() const noexcept override { return backend_.name(); }
  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    return backend_.allocate(bytes);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override {
    backend_.upload(dst, src);
  }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    backend_.download(dst, src);
  }
  void synchronize(Deadline deadline) override { backend_.synchronize(deadline); }
  [[nodiscard]] std::unique_ptr<Cache> make_cache(const CacheLayout& layout) override {
    return backend_.make_cache(layout);
  }
  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    auto weight = backend_.make_weight(view);
    // In the order in which an MlaLayer makes them.
    static constexpr std::array<const char*, 5> kNames = {"q_a | kv_a", "q_b", "W_UK (absorb)",
                                                          "W_UV", "o_proj"};
    names[weight.get()] = names.size() < kNames.size() ? kNames.at(names.size()) : "other";
    return weight;
  }
  [[nodiscard]] std::span<std::byte> host_page(Cache& cache, int layer,
                                               std::int32_t page) override {
    return backend_.host_page(cache, layer, page);
  }
  void store_rows(Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                  std::span<const std::byte> rows) override {
    backend_.store_rows(cache, layer, page, slot, rows);
  }
  void load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                 std::span<std::byte> rows) override {
    backend_.load_rows(cache, layer, page, slot, rows);
  }

 private:
  /// A product is known by its weight, the rest by the operation.
  [[nodiscard]] Phase phase_of(const Call& call) {
    if (const auto* gemm = std::get_if<GemmArgs>(&call)) {
      const Weight& weight = *gemm->weight;
      return {.name = names[gemm->weight],
              .gflop = 2e-9 * static_cast<double>(weight.batch() * weight.rows() * weight.cols() *
                                                  gemm->tokens),
              .batch = weight.batch(),
              .rows = weight.rows(),
              .cols = weight.cols()};
    }
    if (std::holds_alternative<RmsNormArgs>(call)) return {.name = "norms"};
    if (std::holds_alternative<RopeArgs>(call)) return {.name = "RoPE"};
    if (std::holds_alternative<ConvertArgs>(call)) return {.name = "to bf16"};
    return {.name = std::string(call_name(call))};
  }
  [[nodiscard]] bool do_call(const Call& call) override {
    if (std::holds_alternative<LatentRowsArgs>(call)) return false;  // timed by its parts
    if (std::holds_alternative<AttendMergeArgs>(call)) return false;
    time(phase_of(call), [&] { backend_.call(call); });
    return true;
  }
  template <typename Work>
  void time(Phase phase, const Work& work) {
    const double start = seconds_now(clock_);
    work();
    const double took = seconds_now(clock_) - start;
    auto found = std::ranges::find(phases, phase.name, &Phase::name);
    if (found == phases.end()) found = phases.insert(phases.end(), std::move(phase));
    found->seconds += took;
  }

  Backend& backend_;
  Clock clock_;
};

struct MlaStep::Parts {
  Parts(Backend& backend, int batch, int length)
      : shape(find_model_shape("deepseek-v3")),
        tokens(batch),
        layer(backend, shape, random_weights(shape),
              std::make_shared<MlaWorkspace>(
                  backend, shape, MlaWorkspaceOptions{.max_tokens = batch, .prefill = false})),
        decode(backend, static_cast<int>(shape.num_attention_heads), 1,
               std::vector<int>(static_cast<std::size_t>(batch), length)),
        positions(static_cast<std::size_t>(batch), length - 1),
        hidden(random_weight(batch, shape.hidden_size)),
        width(std::int64_t{shape.num_attention_heads} * shape.latent_dim()),
        queries(static_cast<std::size_t>(tokens * width)),
        halves(queries.size()),
        rows(static_cast<std::size_t>(tokens * shape.latent_dim())),
        states(static_cast<std::size_t>(batch) *
               StateShape{static_cast<int>(shape.num_attention_heads),
                          static_cast<int>(shape.kv_lora_rank)}
                   .record_floats()),
        output(hidden.size()) {}

  ModelShape shape;
  std::int64_t tokens;
  MlaLayer layer;
  DecodeCase decode;
  std::vector<std::int64_t> positions;
  std::vector<float> hidden;
  std::int64_t width;
  std::vector<float> queries;
  std::vector<bf16> halves;
  std::vector<float> rows, states, output;
};

MlaStep::MlaStep(Backend& backend, int batch, int length, Clock clock)
    : timed_(std::make_unique<Timed>(backend, clock)),
      parts_(std::make_unique<Parts>(*timed_, batch, length)) {}
MlaStep::~MlaStep() = default;

void MlaStep::run() {
  for (Phase& phase : timed_->phases) phase.seconds = 0;
  Parts& p = *parts_;
  p.layer.project(p.tokens, p.hidden.data(), p.positions, p.queries.data(), p.rows.data());
  timed_->call(ConvertArgs{.rows = p.tokens,
                           .src = p.queries.data(),
                           .src_row = plain_row(p.width),
                           .src_stride_bytes = static_cast<std::size_t>(p.width) * sizeof(float),
                           .dst = p.halves.data(),
                           .dst_row = plain_row(p.width, DType::kBF16),
                           .dst_stride_bytes = static_cast<std::size_t>(p.width) * sizeof(bf16)});
  p.decode.attend();
  p.decode.merge();
  p.layer.output(p.tokens, p.states.data(), p.output.data());
}

const std::vector<MlaStep::Phase>& MlaStep::phases() const noexcept {
  return timed_->phases;
}

struct OneDnnProduct::Parts {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul::primitive_desc description;
  dnnl::matmul product;
  std::unordered_map<int, dnnl::memory> arguments;
};

OneDnnProduct::OneDnnProduct(Type type, std::int64_t batch, std::int64_t tokens, std::int64_t rows,
                             std::int64_t cols)
    : parts_(std::make_unique<Parts>()) {
  using dnnl::memory;
  const auto data = type == Type::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
  const auto dense = memory::format_tag::abc;
  const memory::desc x({batch, tokens, cols}, data, dense);
  const memory::desc any({batch, cols, rows}, data, memory::format_tag::any);
  const memory::desc y({batch, tokens, rows}, memory::data_type::f32, dense);
#if DNNL_VERSION_MAJOR >= 3  // Debian 13
  parts_->description = {parts_->engine, x, any, y};
#else
  parts_->description = {dnnl::matmul::desc(x, any, y), parts_->engine};
#endif
  parts_->product = dnnl::matmul(parts_->description);
  memory weights(parts_->description.weights_desc(), parts_->engine);
  memory source(x, parts_->engine);
  const auto fill = [](const memory& part) {
    // Small numbers in either type.
    auto* halves = static_cast<std::uint16_t*>(part.get_data_handle());
    std::fill_n(halves, part.get_desc().get_size() / sizeof(std::uint16_t), std::uint16_t{0x3c00});
  };
  fill(weights);
  fill(source);
  parts_->arguments = {{DNNL_ARG_SRC, source},
                       {DNNL_ARG_WEIGHTS, weights},
                       {DNNL_ARG_DST, memory(y, parts_->engine)}};
}
OneDnnProduct::~OneDnnProduct() = default;

void OneDnnProduct::run() {
  parts_->product.execute(parts_->stream, parts_->arguments);
  parts_->stream.wait();
}

std::string OneDnnProduct::implementation() const {
  return parts_->description.impl_info_str();
}

}  // namespace tributary::bench
