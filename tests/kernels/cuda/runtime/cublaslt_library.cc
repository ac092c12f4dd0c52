// libcublasLt.so of the emulated device: the functions that kernels/cuda/cublaslt.h loads, as far
// as it uses them: D = transposed(A) B in fp32, column-major, in batches. A product is one more
// kernel in the stream; each element is a sum in the order of the inner dimension.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/dtype.h"
#include "tests/kernels/cuda/runtime/state.h"

namespace {

using tributary::bf16;
using tributary::test::device::enqueue_product;
using tributary::test::device::require_device_memory;
using tributary::test::device::suggestions_are_useless;

// The contents of an algorithm's words.
constexpr std::size_t kSplits = 0;
constexpr std::size_t kSuggested = 1;  // by the heuristic
constexpr std::size_t kTile = 2;
/// The only algorithm that is listed, and its tiles, the last of which computes something.
constexpr int kListedId = 7;
constexpr std::uint32_t kListedTiles[] = {3, 5};

/// One that no real library has.
constexpr std::size_t kVersion = 1;
/// The alignment that tensor-core kernels require of every row.
constexpr std::int64_t kRowAlignment = 16;

struct Matrix : cublasLtMatrixLayoutOpaque_t {
  cudaDataType type = CUDA_R_32F;
  std::int64_t rows = 0, cols = 0, leading = 0;
  std::int32_t batch = 1;
  std::int64_t stride = 0;

  [[nodiscard]] std::size_t element() const { return type == CUDA_R_16BF ? 2 : 4; }
  [[nodiscard]] std::size_t bytes() const {
    const std::int64_t last = (cols - 1) * leading + rows;
    return static_cast<std::size_t>((batch - 1) * stride + last) * element();
  }
};

struct Product : cublasLtMatmulDescOpaque_t {
  bool usable = false;  // fp32 sums, fp32 scale
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
};

struct Preference : cublasLtMatmulPreferenceOpaque_t {
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

struct Operands {
  Matrix a, b, d;
};

template <typename T>
cublasStatus_t set(T& field, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

bool valid(const Matrix& matrix) {
  return matrix.rows > 0 && matrix.cols > 0 && matrix.leading >= matrix.rows && matrix.batch > 0 &&
         (matrix.batch == 1 || matrix.stride >= matrix.cols * matrix.leading);
}

/// Whether the sizes match, and there is a kernel for the types and alignments.
cublasStatus_t supported(const Product& product, const Operands& o, const Matrix& c) {
  if (!valid(o.a) || !valid(o.b) || !valid(o.d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (o.a.rows != o.b.rows || o.d.rows != o.a.cols || o.d.cols != o.b.cols ||
      o.a.batch != o.b.batch || o.d.batch != o.a.batch || c.rows != o.d.rows ||
      c.cols != o.d.cols) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool types = (o.a.type == CUDA_R_16BF || o.a.type == CUDA_R_32F) && o.b.type == o.a.type &&
                     o.d.type == CUDA_R_32F && c.type == CUDA_R_32F;
  const auto aligned = [](const Matrix& matrix) {
    return matrix.leading * static_cast<std::int64_t>(matrix.element()) % kRowAlignment == 0;
  };
  if (!product.usable || product.a != CUBLAS_OP_T || product.b != CUBLAS_OP_N || !types ||
      !aligned(o.a) || !aligned(o.b) || !aligned(o.d)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

/// Matrix `batch`, as fp32; `transposed` row by row.
std::vector<float> values(const Matrix& matrix, const void* data, std::int32_t batch,
                          bool transposed) {
  std::vector<float> all(static_cast<std::size_t>(matrix.rows * matrix.cols));
  for (std::int64_t c = 0; c < matrix.cols; ++c) {
    for (std::int64_t r = 0; r < matrix.rows; ++r) {
      const std::int64_t at = batch * matrix.stride + c * matrix.leading + r;
      const float value = matrix.type == CUDA_R_16BF
                              ? tributary::to_float(static_cast<const bf16*>(data)[at])
                              : static_cast<const float*>(data)[at];
      all[static_cast<std::size_t>(transposed ? r * matrix.cols + c : c * matrix.rows + r)] = value;
    }
  }
  return all;
}

void multiply(const Operands& o, const void* a, const void* b, float* d) {
  require_device_memory(a, o.a.bytes(), "a product's weight");
  require_device_memory(b, o.b.bytes(), "a product's operand");
  require_device_memory(d, o.d.bytes(), "a product's result");
  const auto inner = static_cast<std::size_t>(o.a.rows);
  const auto rows = static_cast<std::size_t>(o.d.rows);
  for (std::int32_t batch = 0; batch < o.d.batch; ++batch) {
    const std::vector<float> left = values(o.a, a, batch, true);  // [inner][rows]
    const std::vector<float> right = values(o.b, b, batch, false);
    for (std::int64_t col = 0; col < o.d.cols; ++col) {
      float* const sums = d + batch * o.d.stride + col * o.d.leading;
      std::fill_n(sums, rows, 0.0F);
      const float* const factors = &right[static_cast<std::size_t>(col) * inner];
      for (std::size_t k = 0; k < inner; ++k) {
        const float* const row = &left[k * rows];
        for (std::size_t r = 0; r < rows; ++r) sums[r] += row[r] * factors[k];
      }
    }
  }
}

}  // namespace

std::size_t cublasLtGetVersion() {
  return kVersion;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "the product failed to launch";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  auto* const made = new Product;
  made->usable = compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F;
  *product = made;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete static_cast<Product*>(product);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  auto* const own = static_cast<Product*>(product);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) return set(own->a, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) return set(own->b, value, bytes);
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t leading) {
  auto* const made = new Matrix;
  made->type = type;
  made->rows = static_cast<std::int64_t>(rows);
  made->cols = static_cast<std::int64_t>(cols);
  made->leading = leading;
  *layout = made;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete static_cast<Matrix*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  auto* const own = static_cast<Matrix*>(layout);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return set(own->batch, value, bytes);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    return set(own->stride, value, bytes);
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new Preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete static_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  if (attribute != CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return CUBLAS_STATUS_NOT_SUPPORTED;
  return set(static_cast<Preference*>(preference)->reductions, value, bytes);
}

/// Offers first an algorithm that splits sums, unless that is ruled out: the caller must skip it.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  *count = 0;
  const Operands operands{*static_cast<Matrix*>(a), *static_cast<Matrix*>(b),
                          *static_cast<Matrix*>(d)};
  const cublasStatus_t status =
      supported(*static_cast<Product*>(product), operands, *static_cast<Matrix*>(c));
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  for (const std::uint64_t splits : {std::uint64_t{2}, std::uint64_t{1}}) {
    if (*count == most) break;
    if (splits > 1 && static_cast<Preference*>(preference)->reductions == 0) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    result.algo.data[kSplits] = splits;
    result.algo.data[kSuggested] = 1;
    result.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t /*handle*/,
                                        cublasComputeType_t /*compute*/, cudaDataType_t /*scale*/,
                                        cudaDataType_t /*a*/, cudaDataType_t /*b*/,
                                        cudaDataType_t /*c*/, cudaDataType_t /*d*/, int most,
                                        int ids[], int* count) {
  if (most < 1) return CUBLAS_STATUS_INVALID_VALUE;
  ids[0] = kListedId;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t /*handle*/, cublasComputeType_t /*compute*/,
                                      cudaDataType_t /*scale*/, cudaDataType_t /*a*/,
                                      cudaDataType_t /*b*/, cudaDataType_t /*c*/,
                                      cudaDataType_t /*d*/, int id,
                                      cublasLtMatmulAlgo_t* algorithm) {
  if (id != kListedId) return CUBLAS_STATUS_INVALID_VALUE;
  *algorithm = {};
  algorithm->data[kSplits] = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* /*algorithm*/,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute,
                                                 void* value, std::size_t bytes,
                                                 std::size_t* written) {
  if (attribute != CUBLASLT_ALGO_CAP_TILE_IDS) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (bytes < sizeof(kListedTiles)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, kListedTiles, sizeof(kListedTiles));
  *written = sizeof(kListedTiles);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  std::uint32_t kind = 0;
  if (bytes != sizeof(kind)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&kind, value, sizeof(kind));
  if (attribute == CUBLASLT_ALGO_CONFIG_STAGES_ID) return CUBLAS_STATUS_SUCCESS;
  if (attribute != CUBLASLT_ALGO_CONFIG_TILE_ID) return CUBLAS_STATUS_NOT_SUPPORTED;
  algorithm->data[kTile] = kind;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes,
                                                    std::size_t* written) {
  if (attribute != CUBLASLT_ALGO_CONFIG_SPLITK_NUM) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto splits = static_cast<std::int32_t>(algorithm->data[kSplits]);
  if (bytes != sizeof(splits)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &splits, sizeof(splits));
  *written = sizeof(splits);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t product,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  result->algo = *algorithm;
  const Operands operands{*static_cast<Matrix*>(a), *static_cast<Matrix*>(b),
                          *static_cast<Matrix*>(d)};
  result->state = supported(*static_cast<Product*>(product), operands, *static_cast<Matrix*>(c));
  const bool suggested = algorithm->data[kSuggested] == 1;
  // A suggestion that does not take the smallest number of tokens; a listed one of the wrong tile.
  constexpr std::int64_t kFewColumns = 48;
  if ((suggested && suggestions_are_useless() && operands.d.cols <= kFewColumns) ||
      (!suggested && algorithm->data[kTile] != kListedTiles[1])) {
    result->state = CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return result->state;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* /*c*/, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* /*workspace*/,
                              std::size_t /*workspace_bytes*/, cudaStream_t stream) {
  const Operands operands{*static_cast<Matrix*>(a_layout), *static_cast<Matrix*>(b_layout),
                          *static_cast<Matrix*>(d_layout)};
  const cublasStatus_t status =
      supported(*static_cast<Product*>(product), operands, *static_cast<Matrix*>(c_layout));
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const bool plain = *static_cast<const float*>(alpha) == 1.0F &&
                     *static_cast<const float*>(beta) == 0.0F && algorithm->data[kSplits] == 1;
  if (handle == nullptr || !plain) return CUBLAS_STATUS_NOT_SUPPORTED;
  // Layouts are copied: the caller may destroy them while the product waits for its turn.
  const cudaError_t code = enqueue_product(
      stream, [operands, a, b, d] { multiply(operands, a, b, static_cast<float*>(d)); });
  return code == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
