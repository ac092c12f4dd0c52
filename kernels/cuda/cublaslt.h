// Internal to kernels/cuda: cuBLASLt, opened when a backend is made, so that programs start without
// it; and owners of its objects.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/shared_library.h"

namespace tributary::cuda {

/// The functions that we use, by their own names less the prefix.
class CublasLt {
 public:
  /// Throws kUnavailable where the library, or one of its functions, is not there.
  CublasLt();

  /// For example 130100.
  [[nodiscard]] std::size_t version() const { return get_version(); }
  /// Throws kInternal with the library's words, naming what was asked for.
  void check(cublasStatus_t status, std::string_view what) const;

  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtGetStatusString) get_status_string;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) matrix_layout_set_attribute;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_attribute;
  decltype(&cublasLtMatmulAlgoGetHeuristic) algo_get_heuristic;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algo_config_get_attribute;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
  decltype(&cublasLtMatmul) matmul;

 private:
  SharedLibrary library_;
};

/// The one table of the process.
[[nodiscard]] const CublasLt& cublaslt();

/// What went wrong with opening it, or empty.
[[nodiscard]] std::string cublaslt_problem();

struct HandleDestroyer {
  void operator()(cublasLtHandle_t handle) const noexcept { (void)cublaslt().destroy(handle); }
};
using CublasHandle = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, HandleDestroyer>;

struct OperationDestroyer {
  void operator()(cublasLtMatmulDesc_t operation) const noexcept {
    (void)cublaslt().matmul_desc_destroy(operation);
  }
};
using Operation = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, OperationDestroyer>;

struct LayoutDestroyer {
  void operator()(cublasLtMatrixLayout_t layout) const noexcept {
    (void)cublaslt().matrix_layout_destroy(layout);
  }
};
using Layout = std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, LayoutDestroyer>;

/// A batch of matrices, column-major as the library has them, without gaps.
[[nodiscard]] Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t cols,
                                 std::int64_t batch);

/// D = transposed(A) B, sums and result in fp32: no TF32.
[[nodiscard]] Operation make_operation();

}  // namespace tributary::cuda
