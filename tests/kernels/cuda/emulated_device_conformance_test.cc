// The CUDA backend itself, host side and kernels, joins the conformance suite of backends without
// a GPU: on the emulated device.
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/backend_conformance.h"

namespace tributary::test {
namespace {

INSTANTIATE_TEST_SUITE_P(CudaEmulated, BackendConformance,
                         testing::Values(BackendUnderTest{
                             .name = "Emulated",
                             .make = [] { return make_cuda_backend({}); },
                             .arithmetic = Arithmetic::kBf16Weights}),
                         name_of);

}  // namespace
}  // namespace tributary::test
