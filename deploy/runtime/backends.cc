#include "deploy/runtime/backends.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"

namespace tributary {

std::vector<std::string> backend_names() {
  std::vector<std::string> names{"cpu"};
  for (const auto& set : cpu_instruction_sets()) names.push_back(fmt::format("cpu/{}", set));
  names.emplace_back("reference");
  return names;
}

std::unique_ptr<Backend> make_backend(std::string_view name, int threads) {
  constexpr std::string_view kCpu = "cpu/";
  if (name == "reference") return make_reference_backend();
  if (name == "cpu") return make_cpu_backend({.threads = threads, .instruction_set = ""});
  const auto names = backend_names();
  if (name.starts_with(kCpu) && std::find(names.begin(), names.end(), name) != names.end()) {
    return make_cpu_backend(
        {.threads = threads, .instruction_set = std::string(name.substr(kCpu.size()))});
  }
  fail(ErrorCode::kInvalidArgument, "backend is '{}', expected one of: {}", name,
       fmt::join(names, ", "));
}

}  // namespace tributary
