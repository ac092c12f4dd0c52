#include "deploy/runtime/processor_name.h"

#include <fmt/format.h>
#include <sched.h>

#include <cstddef>
#include <fstream>

namespace tributary {

std::string processor_name() {
  std::string model = "unknown processor";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      model = line.substr(colon + 2);
      break;
    }
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  const int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return fmt::format("{}, {} CPUs usable", model, usable);
}

}  // namespace tributary
