// The suite that every backend joins: abstract tests over a parameter that makes the backend. A
// backend's own test file instantiates them (reference_backend_test.cc is the shortest).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "core/interface/backend.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {

/// Unit roundoff of fp32.

struct BackendUnderTest {
  std::string name;  // of the test case; letters and digits
  std::function<std::unique_ptr<Backend>()> make;
  Arithmetic arithmetic = Arithmetic::kFloat32;

  friend void PrintTo(const BackendUnderTest& under_test, std::ostream* out) {
    *out << under_test.name;
  }
};

class BackendConformance : public testing::TestWithParam<BackendUnderTest> {
 protected:
  BackendConformance() : backend_(GetParam().make()) {}

  [[nodiscard]] Backend& backend() { return *backend_; }

  /// A copy of `values` in the backend's memory.
  template <typename T>
  [[nodiscard]] std::unique_ptr<Buffer> device(const std::vector<T>& values) {
    auto buffer = backend_->allocate(values.size() * sizeof(T));
    backend_->upload(buffer->data(), std::as_bytes(std::span(values)));
    return buffer;
  }
  template <typename T>
  [[nodiscard]] std::vector<T> host(const Buffer& buffer) {
    std::vector<T> values(buffer.bytes() / sizeof(T));
    backend_->download(std::as_writable_bytes(std::span(values)), buffer.data());
    return values;
  }

 private:
  std::unique_ptr<Backend> backend_;
};

/// Name generator of INSTANTIATE_TEST_SUITE_P.
inline std::string name_of(const testing::TestParamInfo<BackendUnderTest>& info) {
  return info.param.name;
}

}  // namespace tributary::test
