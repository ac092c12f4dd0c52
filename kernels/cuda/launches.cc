#include "kernels/cuda/launches.h"

#include <type_traits>

namespace tributary::cuda {

void make_launch(const Launch& launch, Projection* projection, cudaStream_t stream) {
  std::visit(
      [&](const auto& one) {
        if constexpr (std::is_same_v<decltype(one), const GemmLaunch&>) {
          projection->gemm(*one.weight, one.args);
        } else {
          enqueue(one, stream);
        }
      },
      launch);
}

}  // namespace tributary::cuda
