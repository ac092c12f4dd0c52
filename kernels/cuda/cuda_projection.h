// Internal to kernels/cuda: products (GemmArgs), which are cuBLASLt's.
//
// Interface and bits. Activations and results are fp32, and a product is as exact as one in fp32.
// If every value of a weight is exact in bf16 (as in published weights), the weight is stored as
// bf16 and the activations are split into three bf16 parts that add up to them (8 + 8 + 8 bits).
// The parts are additional rows of one tensor-core product with fp32 sums, and their results are
// added at the end. That is three times the arithmetic of a bf16 product over the same bytes of
// weight, which is free when reading the weight is the limit, as in decode. Other weights are fp32,
// without TF32.
//
// A row's bits do not depend on the rest of the batch. Tokens are padded to one of a few sizes,
// which all use the same algorithm of the library, chosen when the weight was made (no split of the
// inner dimension, no workspace). One algorithm computes each element of the result in one order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "core/interface/backend.h"
#include "kernels/cuda/base/support.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/device_memory.h"

namespace tributary::cuda {

/// Tokens of one product; a larger call uses several. The padding of one token should cost little
/// compared with the weight, and a batch of 128 makes good use of tensor cores.
inline constexpr std::array<std::int64_t, 3> kTokenTiles{16, 64, 128};
inline constexpr std::int64_t kMostTokens = kTokenTiles.back();

class CudaWeight final : public Weight {
 public:
  CudaWeight(const WeightView& view, const Backend* owner, cudaStream_t stream);

  [[nodiscard]] const Backend* owner() const noexcept { return owner_; }
  /// bf16 values: three parts of activations.
  [[nodiscard]] bool half() const noexcept { return half_; }
  [[nodiscard]] int parts() const noexcept { return half_ ? 3 : 1; }
  /// Rows and columns as stored: multiples of 8, the rest zero, so that every matrix is aligned.
  [[nodiscard]] std::int64_t stored_rows() const noexcept { return stored_rows_; }
  [[nodiscard]] std::int64_t stored_cols() const noexcept { return stored_cols_; }

 private:
  friend class Projection;

  const Backend* owner_;
  bool half_;
  std::int64_t stored_rows_, stored_cols_;
  DeviceBytes data_;  // [batch][stored_rows][stored_cols]
  Layout layout_;
  // Chosen by Projection::make_weight.
  cublasLtMatmulAlgo_t algorithm_{};
  std::array<Layout, kTokenTiles.size()> operand_, result_;
};

class Projection {
 public:
  explicit Projection(cudaStream_t stream);

  /// Throws kUnsupported if the library has no algorithm, kPoolFull.
  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view, const Backend* owner);
  void gemm(const CudaWeight& weight, const GemmArgs& args);
  /// Memory that products use. A larger weight replaces it, so a captured product must hold its
  /// own.
  [[nodiscard]] std::shared_ptr<const void> memory() const noexcept { return memory_; }

 private:
  void choose_algorithm(CudaWeight& weight) const;
  [[nodiscard]] bool choose_suggested(CudaWeight& weight, std::size_t tile) const;
  [[nodiscard]] bool choose_any(CudaWeight& weight) const;
  [[nodiscard]] bool take_algorithm(CudaWeight& weight,
                                    const cublasLtMatmulAlgo_t& algorithm) const;
  void reserve(const CudaWeight& weight);
  void multiply(const CudaWeight& weight, std::size_t tile);

  cudaStream_t stream_;
  CublasHandle handle_;
  Operation operation_;
  // For the largest weight made so far and kMostTokens, so that gemm allocates nothing.
  struct Memory {
    std::size_t operand_bytes = 0, result_bytes = 0;
    DeviceBytes operand, result;
  };
  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
};

}  // namespace tributary::cuda
