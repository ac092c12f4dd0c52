// The CPU time that control groups (containers, systemd, Slurm) grant to this process.
#pragma once

#include <cstdint>
#include <filesystem>

namespace tributary {

/// The narrowest of the `cpu.max` that hold for a process: a limit in CPUs on all processes of a
/// group together. Trivially copyable: ranks exchange it.
struct CpuQuota {
  double cpus = 0;          // 0: none
  std::uint64_t group = 0;  // the inode of the group's folder: equal for all processes under it
};

/// `groups`: where the groups (version 2) are mounted; `own`: the file that says which one is ours.
/// In a container the mount's root is the container's group, wherever `own` says that it is.
[[nodiscard]] CpuQuota cpu_quota(const std::filesystem::path& groups = "/sys/fs/cgroup",
                                 const std::filesystem::path& own = "/proc/self/cgroup");

}  // namespace tributary
