#include "deploy/runtime/backends.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#ifdef TRIBUTARY_HAS_CUDA
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_devices.h"
#endif

namespace tributary {
namespace {

constexpr std::string_view kCpu = "cpu/";
constexpr std::string_view kCuda = "cuda/";

bool names_cuda(std::string_view name) {
  return name == "cuda" || name.starts_with(kCuda);
}

#ifdef TRIBUTARY_HAS_CUDA
std::unique_ptr<Backend> make_cuda(std::string_view name) {
  return make_cuda_backend({.device = cuda_ordinal(name)});
}
#else
std::unique_ptr<Backend> make_cuda(std::string_view /*name*/) {
  fail(ErrorCode::kUnsupported, "backend cuda cannot run here: this build has no CUDA");
}
#endif

}  // namespace

std::vector<std::string> backend_names() {
  std::vector<std::string> names{"cpu"};
  for (const auto& set : cpu_instruction_sets()) names.push_back(fmt::format("cpu/{}", set));
#ifdef TRIBUTARY_HAS_CUDA
  const CudaStatus cuda = cuda_status();
  if (cuda.problem.empty()) {
    names.emplace_back("cuda");
    for (const CudaDevice& device : cuda.devices) {
      names.push_back(fmt::format("{}{}", kCuda, device.ordinal));
    }
  }
#endif
  names.emplace_back("reference");
  return names;
}

int cuda_ordinal(std::string_view name) {
  if (name == "cuda") return 0;
  const std::string_view digits = name.substr(std::min(name.size(), kCuda.size()));
  int ordinal = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), ordinal);
  if (error != std::errc() || end != digits.data() + digits.size() || ordinal < 0) {
    fail(ErrorCode::kInvalidArgument, "backend is '{}', expected cuda or cuda/N", name);
  }
  return ordinal;
}

std::unique_ptr<Backend> make_backend(std::string_view name, int threads) {
  if (name == "reference") return make_reference_backend();
  if (name == "cpu") return make_cpu_backend({.threads = threads, .instruction_set = ""});
  if (names_cuda(name)) return make_cuda(name);
  const auto names = backend_names();
  if (name.starts_with(kCpu) && std::find(names.begin(), names.end(), name) != names.end()) {
    return make_cpu_backend(
        {.threads = threads, .instruction_set = std::string(name.substr(kCpu.size()))});
  }
  fail(ErrorCode::kInvalidArgument, "backend is '{}', expected one of: {}", name,
       fmt::join(names, ", "));
}

}  // namespace tributary
