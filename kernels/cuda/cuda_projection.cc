#include "kernels/cuda/cuda_projection.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {
namespace {

/// Batches travel in a dimension of the launch grid.
constexpr std::int64_t kMostBatch = 65535;
/// Sixteen bytes of bf16: the alignment of rows for tensor-core kernels.
constexpr std::int64_t kAlignment = 8;
/// Candidates of the library's own choice for one number of tokens. The first is nearly always
/// taken; the time of the rest does not matter.
constexpr int kCandidates = 64;
/// The most algorithms, or tiles or stages of one: the library has some dozens.
constexpr int kMostKinds = 256;
constexpr auto kTimeout = std::chrono::seconds(30);

std::int64_t aligned(std::int64_t count) {
  return (count + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t product(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * static_cast<std::size_t>(c);
}

/// Calls visit(index in the stored order, value) for every value of the view.
template <typename Visit>
void for_values(const WeightView& view, std::int64_t rows, std::int64_t cols, const Visit& visit) {
  for (std::int64_t b = 0; b < view.batch; ++b) {
    for (std::int64_t r = 0; r < view.rows; ++r) {
      const std::int64_t source = b * view.batch_stride + r * view.row_stride;
      const std::size_t row = product(b * rows + r, cols, 1);
      for (std::int64_t c = 0; c < view.cols; ++c) {
        const std::int64_t at = source + c * view.col_stride;
        const float value = view.dtype == DType::kF32
                                ? static_cast<const float*>(view.data)[at]
                                : to_float(static_cast<const bf16*>(view.data)[at]);
        visit(row + static_cast<std::size_t>(c), value);
      }
    }
  }
}

bool all_bf16(const WeightView& view) {
  if (view.dtype == DType::kBF16) return true;
  bool all = true;
  for_values(view, view.rows, view.cols, [&](std::size_t, float value) {
    all = all && (std::bit_cast<std::uint32_t>(value) & 0xffffU) == 0;
  });
  return all;
}

/// Copies to the device, in the stored order, on the stream of the products: a copy on another
/// stream might not be complete when one of them begins.
template <typename T, typename Cast>
DeviceBytes stored(const WeightView& view, std::int64_t rows, std::int64_t cols, const Cast& cast,
                   cudaStream_t stream) {
  std::vector<T> host(product(view.batch, rows, cols));
  for_values(view, rows, cols, [&](std::size_t at, float value) { host[at] = cast(value); });
  DeviceBytes device = allocate_device(host.size() * sizeof(T), "a weight");
  check(cudaMemcpyAsync(device.get(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice,
                        stream),
        "sending a weight");
  return device;
}

const WeightView& checked(const WeightView& view) {
  if (view.batch > kMostBatch) {
    fail(ErrorCode::kUnsupported, "weight: batch is {}, the CUDA backend takes at most {}",
         view.batch, kMostBatch);
  }
  return view;
}

struct PreferenceDestroyer {
  void operator()(cublasLtMatmulPreference_t preference) const noexcept {
    (void)cublaslt().preference_destroy(preference);
  }
};
using Preference =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>, PreferenceDestroyer>;

Preference make_preference() {
  const CublasLt& lt = cublaslt();
  cublasLtMatmulPreference_t preference = nullptr;
  lt.check(lt.preference_create(&preference), "a preference");
  Preference owner(preference);
  // No algorithm that splits the inner dimension among blocks. The workspace is 0 bytes by default.
  const std::uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
  lt.check(lt.preference_set_attribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                       &none, sizeof(none)),
           "a preference's reduction scheme");
  return owner;
}

/// The settings of an algorithm; empty if it has no such choice.
std::vector<std::uint32_t> kinds_of(const cublasLtMatmulAlgo_t& algorithm,
                                    cublasLtMatmulAlgoCapAttributes_t which) {
  std::vector<std::uint32_t> kinds(kMostKinds);
  std::size_t written = 0;
  if (cublaslt().algo_cap_get_attribute(&algorithm, which, kinds.data(),
                                        kinds.size() * sizeof(std::uint32_t),
                                        &written) != CUBLAS_STATUS_SUCCESS) {
    written = 0;
  }
  kinds.resize(written / sizeof(std::uint32_t));
  return kinds;
}

bool set(cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t which,
         std::uint32_t kind) {
  return cublaslt().algo_config_set_attribute(&algorithm, which, &kind, sizeof(kind)) ==
         CUBLAS_STATUS_SUCCESS;
}

bool splits(const cublasLtMatmulAlgo_t& algorithm) {
  const CublasLt& lt = cublaslt();
  std::int32_t splits = 0;
  std::size_t written = 0;
  lt.check(lt.algo_config_get_attribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                        sizeof(splits), &written),
           "an algorithm's split");
  return splits > 1;
}

}  // namespace

CudaWeight::CudaWeight(const WeightView& view, const Backend* owner, cudaStream_t stream)
    : Weight(view.batch, view.rows, view.cols),
      owner_(owner),
      half_(all_bf16(checked(view))),
      stored_rows_(aligned(view.rows)),
      stored_cols_(aligned(view.cols)) {
  if (half_) {
    data_ = stored<bf16>(view, stored_rows_, stored_cols_, to_bf16, stream);
  } else {
    data_ = stored<float>(
        view, stored_rows_, stored_cols_, [](float value) { return value; }, stream);
  }
  const cudaDataType_t type = half_ ? CUDA_R_16BF : CUDA_R_32F;
  layout_ = make_layout(type, stored_cols_, stored_rows_, batch());
  for (std::size_t i = 0; i < kTokenTiles.size(); ++i) {
    const std::int64_t rows = parts() * kTokenTiles[i];
    operand_[i] = make_layout(type, stored_cols_, rows, batch());
    result_[i] = make_layout(CUDA_R_32F, stored_rows_, rows, batch());
  }
}

Projection::Projection(cudaStream_t stream) : stream_(stream), operation_(make_operation()) {
  cublasLtHandle_t handle = nullptr;
  cublaslt().check(cublaslt().create(&handle), "opening cuBLASLt");
  handle_.reset(handle);
}

std::unique_ptr<Weight> Projection::make_weight(const WeightView& view, const Backend* owner) {
  auto weight = std::make_unique<CudaWeight>(view, owner, stream_);
  choose_algorithm(*weight);
  reserve(*weight);
  // The values do not matter. The library loads its kernels, which may differ from tile to tile,
  // now and not inside a capture.
  for (std::size_t tile = 0; tile < kTokenTiles.size(); ++tile) multiply(*weight, tile);
  return weight;
}

/// The library's best algorithm for the largest number of tokens, else for another, else any, among
/// those that support all tiles.
void Projection::choose_algorithm(CudaWeight& weight) const {
  for (std::size_t tile = kTokenTiles.size(); tile-- > 0;) {
    if (choose_suggested(weight, tile)) return;
  }
  if (choose_any(weight)) return;
  fail(ErrorCode::kUnsupported,
       "weight of {} x {} x {}: cuBLASLt has no algorithm that takes {}, {} and {} tokens alike",
       weight.batch(), weight.rows(), weight.cols(), kTokenTiles[0], kTokenTiles[1],
       kTokenTiles[2]);
}

/// Takes the algorithm if it computes every tile in one order and without a workspace.
bool Projection::take_algorithm(CudaWeight& weight, const cublasLtMatmulAlgo_t& algorithm) const {
  const CublasLt& lt = cublaslt();
  for (std::size_t tile = 0; tile < kTokenTiles.size(); ++tile) {
    cublasLtMatmulHeuristicResult_t result{};
    auto* const to = weight.result_[tile].get();
    if (lt.algo_check(handle_.get(), operation_.get(), weight.layout_.get(),
                      weight.operand_[tile].get(), to, to, &algorithm,
                      &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize != 0) {
      return false;
    }
  }
  weight.algorithm_ = algorithm;
  return true;
}

/// Chooses among the library's suggestions for one number of tokens.
bool Projection::choose_suggested(CudaWeight& weight, std::size_t tile) const {
  const CublasLt& lt = cublaslt();
  const Preference preference = make_preference();
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
  int count = 0;
  auto* const to = weight.result_[tile].get();
  const cublasStatus_t status = lt.algo_get_heuristic(
      handle_.get(), operation_.get(), weight.layout_.get(), weight.operand_[tile].get(), to, to,
      preference.get(), kCandidates, found.data(), &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) lt.check(status, "choosing an algorithm");
  return std::any_of(found.begin(), found.begin() + count, [&](const auto& candidate) {
    return candidate.state == CUBLAS_STATUS_SUCCESS && !splits(candidate.algo) &&
           take_algorithm(weight, candidate.algo);
  });
}

/// Chooses among all algorithms of the library, with every tile and number of stages.
bool Projection::choose_any(CudaWeight& weight) const {
  const CublasLt& lt = cublaslt();
  const cudaDataType_t type = weight.half() ? CUDA_R_16BF : CUDA_R_32F;
  std::array<int, kMostKinds> ids{};
  int count = 0;
  lt.check(lt.algo_get_ids(handle_.get(), CUBLAS_COMPUTE_32F, CUDA_R_32F, type, type, CUDA_R_32F,
                           CUDA_R_32F, kMostKinds, ids.data(), &count),
           "listing algorithms");
  for (int i = 0; i < count; ++i) {
    cublasLtMatmulAlgo_t algorithm{};
    if (lt.algo_init(handle_.get(), CUBLAS_COMPUTE_32F, CUDA_R_32F, type, type, CUDA_R_32F,
                     CUDA_R_32F, ids[static_cast<std::size_t>(i)],
                     &algorithm) != CUBLAS_STATUS_SUCCESS) {
      continue;
    }
    std::vector<std::uint32_t> tiles = kinds_of(algorithm, CUBLASLT_ALGO_CAP_TILE_IDS);
    std::vector<std::uint32_t> stages = kinds_of(algorithm, CUBLASLT_ALGO_CAP_STAGES_IDS);
    if (tiles.empty()) tiles.push_back(CUBLASLT_MATMUL_TILE_UNDEFINED);
    if (stages.empty()) stages.push_back(CUBLASLT_MATMUL_STAGES_UNDEFINED);
    for (const std::uint32_t tile : tiles) {
      for (const std::uint32_t stage : stages) {
        if (set(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, tile) &&
            set(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID, stage) && !splits(algorithm) &&
            take_algorithm(weight, algorithm)) {
          return true;
        }
      }
    }
  }
  return false;
}

void Projection::reserve(const CudaWeight& weight) {
  const std::size_t element = weight.half() ? sizeof(bf16) : sizeof(float);
  const std::int64_t rows = weight.parts() * kMostTokens;
  const std::size_t operand = product(weight.batch(), rows, weight.stored_cols()) * element;
  const std::size_t result = product(weight.batch(), rows, weight.stored_rows()) * sizeof(float);
  const std::size_t operand_bytes = std::max(operand, memory_->operand_bytes);
  const std::size_t result_bytes = std::max(result, memory_->result_bytes);
  if (operand_bytes == memory_->operand_bytes && result_bytes == memory_->result_bytes) return;
  wait_for(stream_, Deadline::after(kTimeout), "waiting for products before their memory grows");
  memory_ = std::make_shared<Memory>(
      Memory{.operand_bytes = operand_bytes,
             .result_bytes = result_bytes,
             .operand = allocate_device(operand_bytes, "activations of a product"),
             .result = allocate_device(result_bytes, "results of a product")});
}

/// The library's part: the packed activations times the weight.
void Projection::multiply(const CudaWeight& weight, std::size_t tile) {
  const CublasLt& lt = cublaslt();
  const float one = 1;
  const float zero = 0;
  const std::byte* from = memory_->operand.get();
  std::byte* result = memory_->result.get();
  auto* const to = weight.result_[tile].get();
  lt.check(lt.matmul(handle_.get(), operation_.get(), &one, weight.data_.get(),
                     weight.layout_.get(), from, weight.operand_[tile].get(), &zero, result, to,
                     result, to, &weight.algorithm_, nullptr, 0, stream_),
           "a product");
}

void Projection::gemm(const CudaWeight& weight, const GemmArgs& args) {
  for (std::int64_t begin = 0; begin < args.tokens; begin += kMostTokens) {
    const std::int64_t tokens = std::min(kMostTokens, args.tokens - begin);
    const auto tile = static_cast<std::size_t>(std::ranges::lower_bound(kTokenTiles, tokens) -
                                               kTokenTiles.begin());
    const PackLaunch pack{.x = args.x + begin * args.x_token_stride,
                          .x_token_stride = args.x_token_stride,
                          .x_batch_stride = args.x_batch_stride,
                          .tokens = tokens,
                          .batch = weight.batch(),
                          .width = weight.cols(),
                          .rows = kTokenTiles[tile],
                          .cols = weight.stored_cols(),
                          .packed = memory_->operand.get()};
    if (weight.half()) {
      pack_parts(pack, stream_);
    } else {
      pack_float(pack, stream_);
    }
    multiply(weight, tile);
    unpack({.packed = reinterpret_cast<const float*>(memory_->result.get()),
            .parts = weight.parts(),
            .rows = kTokenTiles[tile],
            .cols = weight.stored_rows(),
            .tokens = tokens,
            .batch = weight.batch(),
            .width = weight.rows(),
            .y = args.y + begin * args.y_token_stride,
            .y_token_stride = args.y_token_stride,
            .y_batch_stride = args.y_batch_stride},
           stream_);
  }
}

}  // namespace tributary::cuda
