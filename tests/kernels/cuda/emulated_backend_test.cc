// The kernels of the CUDA backend join the conformance suite of backends, on emulated threads.
#include "tests/kernels/cuda/emulated_backend.h"

#include "tests/kernels/backend_conformance.h"

namespace tributary::test {
namespace {

INSTANTIATE_TEST_SUITE_P(CudaEmulated, BackendConformance,
                         testing::Values(BackendUnderTest{
                             .name = "Emulated",
                             .make = [] { return make_emulated_backend(); },
                             .arithmetic = Arithmetic::kBf16Weights}),
                         name_of);

}  // namespace
}  // namespace tributary::test
