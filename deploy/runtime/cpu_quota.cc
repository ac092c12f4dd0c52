#include "deploy/runtime/cpu_quota.h"

#include <sys/stat.h>

#include <fstream>
#include <string>
#include <string_view>

namespace tributary {
namespace {

/// The group of version 2, relative to the mount: the line `0::/PATH`.
std::filesystem::path own_group(const std::filesystem::path& own) {
  constexpr std::string_view kStart = "0::/";
  std::ifstream file(own);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kStart)) return line.substr(kStart.size());
  }
  return {};
}

/// The file's one line is `QUOTA PERIOD` in microseconds, or `max PERIOD`; 0 for no limit.
double read_quota(const std::filesystem::path& folder) {
  std::ifstream file(folder / "cpu.max");
  double quota = 0;
  double period = 0;
  return file >> quota >> period && quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

CpuQuota cpu_quota(const std::filesystem::path& groups, const std::filesystem::path& own) {
  CpuQuota narrowest;
  std::filesystem::path group = own_group(own);
  for (bool root = false; !root; group = group.parent_path()) {
    root = group.empty();
    const std::filesystem::path folder = groups / group;
    const double cpus = read_quota(folder);
    struct stat status {};
    if (cpus == 0 || (narrowest.cpus != 0 && cpus >= narrowest.cpus)) continue;
    if (stat(folder.c_str(), &status) == 0) narrowest = {cpus, status.st_ino};
  }
  return narrowest;
}

}  // namespace tributary
