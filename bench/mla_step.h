// A step of one MLA layer with the time of each operation, and oneDNN's time for the same products.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/interface/backend.h"
#include "deploy/app/bench/dot_peak.h"

namespace tributary::bench {

/// One step: project, store rows, attend, merge, W_UV, o_proj; DeepSeek-V3's shape, bf16 weights.
class MlaStep {
 public:
  /// `length` cached rows per sequence, the new one included.
  MlaStep(Backend& backend, int batch, int length, Clock clock);
  ~MlaStep();
  MlaStep(const MlaStep&) = delete;
  MlaStep& operator=(const MlaStep&) = delete;

  struct Phase {
    std::string name;
    double seconds = 0;  // of the last run
    double gflop = 0;    // of products only
    // The product is y = x W: batch x [tokens, cols] x [cols, rows].
    std::int64_t batch = 0, rows = 0, cols = 0;
  };
  void run();
  /// In order; the same operations in every run.
  [[nodiscard]] const std::vector<Phase>& phases() const noexcept;

 private:
  class Timed;
  struct Parts;
  std::unique_ptr<Timed> timed_;
  std::unique_ptr<Parts> parts_;
};

/// oneDNN's matrix products, with weights reordered in advance into its preferred layout.
class OneDnnProduct {
 public:
  enum class Type { kF32, kBF16 };  // of x and W; y is fp32
  OneDnnProduct(Type type, std::int64_t batch, std::int64_t tokens, std::int64_t rows,
                std::int64_t cols);
  ~OneDnnProduct();
  OneDnnProduct(const OneDnnProduct&) = delete;
  OneDnnProduct& operator=(const OneDnnProduct&) = delete;

  void run();
  /// Such as `brg:avx512_core_bf16`.
  [[nodiscard]] std::string implementation() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tributary::bench
