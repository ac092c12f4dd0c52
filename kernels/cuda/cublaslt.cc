#include "kernels/cuda/cublaslt.h"

#include <array>

#include "core/base/error.h"

namespace tributary::cuda {
namespace {

// Opened by the name for the header's version, as programs that link it do.
std::array<std::string, 2> library_names() {
  return {"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR),
          std::string(TRIBUTARY_CUDA_LIBRARIES) + "/libcublasLt.so." +
              std::to_string(CUBLAS_VER_MAJOR)};
}

}  // namespace

CublasLt::CublasLt() : library_(library_names()) {
  library_.find("cublasLtGetVersion", get_version);
  library_.find("cublasLtGetStatusString", get_status_string);
  library_.find("cublasLtCreate", create);
  library_.find("cublasLtDestroy", destroy);
  library_.find("cublasLtMatmulDescCreate", matmul_desc_create);
  library_.find("cublasLtMatmulDescDestroy", matmul_desc_destroy);
  library_.find("cublasLtMatmulDescSetAttribute", matmul_desc_set_attribute);
  library_.find("cublasLtMatrixLayoutCreate", matrix_layout_create);
  library_.find("cublasLtMatrixLayoutDestroy", matrix_layout_destroy);
  library_.find("cublasLtMatrixLayoutSetAttribute", matrix_layout_set_attribute);
  library_.find("cublasLtMatmulPreferenceCreate", preference_create);
  library_.find("cublasLtMatmulPreferenceDestroy", preference_destroy);
  library_.find("cublasLtMatmulPreferenceSetAttribute", preference_set_attribute);
  library_.find("cublasLtMatmulAlgoGetHeuristic", algo_get_heuristic);
  library_.find("cublasLtMatmulAlgoGetIds", algo_get_ids);
  library_.find("cublasLtMatmulAlgoInit", algo_init);
  library_.find("cublasLtMatmulAlgoCapGetAttribute", algo_cap_get_attribute);
  library_.find("cublasLtMatmulAlgoConfigGetAttribute", algo_config_get_attribute);
  library_.find("cublasLtMatmulAlgoConfigSetAttribute", algo_config_set_attribute);
  library_.find("cublasLtMatmulAlgoCheck", algo_check);
  library_.find("cublasLtMatmul", matmul);
}

void CublasLt::check(cublasStatus_t status, std::string_view what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorCode::kInternal, "{}: cuBLASLt says {}", what, get_status_string(status));
}

const CublasLt& cublaslt() {
  static const CublasLt table;
  return table;
}

std::string cublaslt_problem() {
  return status_of([] { (void)cublaslt(); }).message();
}

std::string cublaslt_version() {
  return cublaslt_problem().empty() ? std::to_string(cublaslt().version()) : "none";
}

Layout make_layout(cudaDataType_t type, std::int64_t rows, std::int64_t cols, std::int64_t batch) {
  const CublasLt& lt = cublaslt();
  cublasLtMatrixLayout_t layout = nullptr;
  lt.check(lt.matrix_layout_create(&layout, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(cols), rows),
           "a matrix layout");
  Layout owner(layout);
  const auto count = static_cast<std::int32_t>(batch);
  const std::int64_t stride = rows * cols;
  lt.check(lt.matrix_layout_set_attribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                          sizeof(count)),
           "a matrix layout's batch");
  lt.check(lt.matrix_layout_set_attribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                          &stride, sizeof(stride)),
           "a matrix layout's stride");
  return owner;
}

Operation make_operation() {
  const CublasLt& lt = cublaslt();
  cublasLtMatmulDesc_t operation = nullptr;
  lt.check(lt.matmul_desc_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "a product");
  Operation owner(operation);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  lt.check(lt.matmul_desc_set_attribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                        sizeof(transposed)),
           "a product's transposition");
  return owner;
}

}  // namespace tributary::cuda
