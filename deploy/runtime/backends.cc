#include "deploy/runtime/backends.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <system_error>

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

bool names_cpu(std::string_view name) {
  if (name == "cpu") return true;
  const auto sets = cpu_instruction_sets();
  return name.starts_with(kCpu) && std::ranges::find(sets, name.substr(kCpu.size())) != sets.end();
}

#ifdef TRIBUTARY_HAS_CUDA
std::unique_ptr<Backend> make_cuda(std::string_view name, const BackendOptions& options) {
  return make_cuda_backend({.device = cuda_ordinal(name),
                            .fast_merge_order = options.merge_order == MergeOrder::kFast,
                            .graphs = !options.disable_cuda_graph,
                            .attend_kernel = options.attend_kernel});
}
#else
std::unique_ptr<Backend> make_cuda(std::string_view /*name*/, const BackendOptions& /*options*/) {
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

MergeOrder parse_merge_order(std::string_view name) {
  for (const MergeOrder order : {MergeOrder::kCanonical, MergeOrder::kFast}) {
    if (merge_order_name(order) == name) return order;
  }
  fail(ErrorCode::kInvalidArgument, "merge order is '{}', expected canonical or fast", name);
}

std::string_view merge_order_name(MergeOrder order) noexcept {
  return order == MergeOrder::kFast ? "fast" : "canonical";
}

std::unique_ptr<Backend> make_backend(std::string_view name, int threads,
                                      const BackendOptions& options) {
  if (names_cuda(name)) return make_cuda(name, options);
  if (name != "reference" && !names_cpu(name)) {
    fail(ErrorCode::kInvalidArgument, "backend is '{}', expected one of: {}", name,
         fmt::join(backend_names(), ", "));
  }
  if (options.merge_order != MergeOrder::kCanonical) {
    fail(ErrorCode::kInvalidArgument,
         "merge order is fast, but backend {} has the canonical one alone; cuda has both", name);
  }
  if (options.attend_kernel != AttendChoice::kAuto) {
    fail(ErrorCode::kInvalidArgument,
         "attend kernel is {}, but backend {} has one alone; cuda has several",
         attend_choice_name(options.attend_kernel), name);
  }
  if (name == "reference") return make_reference_backend();
  const std::string_view set = name.starts_with(kCpu) ? name.substr(kCpu.size()) : "";
  try {
    return make_cpu_backend({.threads = threads, .instruction_set = std::string(set)});
  } catch (const std::system_error& refused) {
    fail(
        ErrorCode::kIo,
        "{} compute threads cannot be started: {} (--threads; the container's pids.max, ulimit -u)",
        threads, refused.what());
  }
}

}  // namespace tributary
