// Internal to kernels/cuda: cuBLASLt, opened when a backend is made, so that programs start without
// it; and owners of its objects.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/shared_library.h"
#include "kernels/cuda/base/support.h"

namespace tributary::cuda {

/// The functions that we use, under their own names without the prefix.
class CublasLt {
 public:
  /// Throws kUnavailable if the library or one of its functions is missing.
  CublasLt();

  /// For example 130100.
  [[nodiscard]] std::size_t version() const { return get_version(); }
  /// Throws kInternal with the library's message and the name of the call.
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
  decltype(&cublasLtMatmulAlgoGetIds) algo_get_ids;
  decltype(&cublasLtMatmulAlgoInit) algo_init;
  decltype(&cublasLtMatmulAlgoCapGetAttribute) algo_cap_get_attribute;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algo_config_get_attribute;
  decltype(&cublasLtMatmulAlgoConfigSetAttribute) algo_config_set_attribute;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
  decltype(&cublasLtMatmul) matmul;

 private:
  SharedLibrary library_;
};

/// The process' only table.
[[nodiscard]] const CublasLt& cublaslt();

/// Why the library could not be opened, or empty.
[[nodiscard]] std::string cublaslt_problem();

/// For the name of a backend: `130100`, or `none`.
[[nodiscard]] std::string cublaslt_version();

struct HandleDestroyer {
  /// May wait for the device, as freeing memory does.
  void operator()(cublasLtHandle_t handle) const noexcept {
    if (!leave_memory_of_device()) (void)cublaslt().destroy(handle);
  }
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
