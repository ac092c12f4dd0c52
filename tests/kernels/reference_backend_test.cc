// The reference backend joins the suite.
#include "kernels/reference/reference_backend.h"

#include "tests/kernels/backend_conformance.h"

namespace tributary::test {

INSTANTIATE_TEST_SUITE_P(Reference, BackendConformance,
                         testing::Values(BackendUnderTest{.name = "float64",
                                                          .make = make_reference_backend,
                                                          .arithmetic = Arithmetic::kFloat64}),
                         name_of);

}  // namespace tributary::test
