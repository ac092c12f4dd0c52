// The calls by which tests query and control the emulated NCCL.
#include <algorithm>

#include "tests/comm/nccl/emulated/state.h"

namespace tributary::test {

nccl::Nccl& nccl::the_nccl() {
  // Never destroyed, like the device.
  static auto* const state = new Nccl;
  return *state;
}

ncclResult_t nccl::refusal(std::string_view function, int rank) {
  auto& failures = the_nccl().failures;
  const auto found = failures.find({std::string(function), rank});
  if (found == failures.end() || --found->second.first > 0) return ncclSuccess;
  const ncclResult_t result = found->second.second;
  failures.erase(found);
  return result;
}

void nccl::add_misuse(const std::string& words) {
  std::string& all = the_nccl().misuse;
  if (!all.empty()) all += "; ";
  all += words;
}

NcclCounters nccl_counters() {
  const device::Lock lock(device::the_device().mutex);
  return nccl::the_nccl().counters;
}

std::size_t live_communicators() {
  const device::Lock lock(device::the_device().mutex);
  return nccl::the_nccl().live.size();
}

void fail_nccl_call(std::string_view function, int rank, int n, ncclResult_t result) {
  const device::Lock lock(device::the_device().mutex);
  auto& failures = nccl::the_nccl().failures;
  failures.erase({std::string(function), rank});
  if (n > 0) failures.emplace(std::pair(std::string(function), rank), std::pair(n, result));
}

bool nccl_failure_is_due(std::string_view function, int rank) {
  const device::Lock lock(device::the_device().mutex);
  return nccl::the_nccl().failures.contains({std::string(function), rank});
}

void fail_communicators(int rank, ncclResult_t error) {
  const device::Lock lock(device::the_device().mutex);
  for (const auto& [handle, comm] : nccl::the_nccl().live) {
    if (comm->rank != rank) continue;
    comm->state = comm->fails(error, "met on the way");
    comm->entering = nullptr;
  }
}

std::string nccl_misuse() {
  const device::Lock lock(device::the_device().mutex);
  return nccl::the_nccl().misuse;
}

void clear_nccl_misuse() {
  const device::Lock lock(device::the_device().mutex);
  nccl::the_nccl().misuse.clear();
}

}  // namespace tributary::test
