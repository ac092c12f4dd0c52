// Chooses the GPU of a rank, and whether NCCL carries the exchanges.
#include "deploy/runtime/cuda_pool.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "comm/staged/staged_communicator.h"
#include "core/base/error.h"
#include "core/pool/gather_all.h"
#include "deploy/runtime/backends.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_devices.h"
#ifdef TRIBUTARY_HAS_NCCL
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_library.h"
#endif

namespace tributary {
namespace {

/// A GPU and its driver take seconds to start, and several at once longer.
constexpr auto kStartTimeout = std::chrono::minutes(2);

/// The kernel's boot id: all containers of a machine share it.
using Machine = std::array<char, 64>;

Machine this_machine() {
  Machine machine{};
  std::ifstream("/proc/sys/kernel/random/boot_id")
      .getline(machine.data(), static_cast<std::streamsize>(machine.size()));
  return machine;
}

/// The number of lower ranks on this rank's machine.
int rank_on_machine(Communicator& communicator) {
  const Machine mine = this_machine();
  std::vector<Machine> all;
  gather_all(communicator, mine, all, Deadline::after(kStartTimeout)).throw_if_error();
  return static_cast<int>(std::count(all.begin(), all.begin() + communicator.rank(), mine));
}

/// A rank's message to the others.
struct Offer {
  std::array<std::byte, 16> device{};
  std::int32_t nccl = 0;
};

/// `cuda/N` gives N; `cuda` shares out the machine's devices.
std::string device_name(std::string_view name, Communicator& communicator) {
  const int rank = rank_on_machine(communicator);
  if (name != "cuda") return std::string(name);
  const std::size_t devices = cuda_status().devices.size();
  if (devices == 0) return std::string(name);  // make_backend says what is missing
  return fmt::format("cuda/{}", static_cast<std::size_t>(rank) % devices);
}

void describe_device(std::string_view name, Offer& offer) {
  const auto ordinal = static_cast<std::size_t>(cuda_ordinal(name));
  const CudaStatus status = cuda_status();
  if (ordinal < status.devices.size()) offer.device = status.devices[ordinal].uuid;
#ifdef TRIBUTARY_HAS_NCCL
  offer.nccl = nccl_status().problem.empty() ? 1 : 0;
#endif
}

#ifdef TRIBUTARY_HAS_NCCL
/// Whether NCCL is on every rank, and no two ranks share a device.
bool nccl_serves(const std::vector<Offer>& all) {
  std::vector<std::array<std::byte, 16>> devices(all.size());
  std::ranges::transform(all, devices.begin(), &Offer::device);
  std::ranges::sort(devices);
  return all.size() > 1 && std::ranges::adjacent_find(devices) == devices.end() &&
         std::ranges::all_of(all, [](const Offer& offer) { return offer.nccl != 0; });
}
#endif

std::unique_ptr<Communicator> make_exchange([[maybe_unused]] std::string_view name,
                                            [[maybe_unused]] const std::vector<Offer>& all,
                                            Backend& backend, Communicator& communicator) {
#ifdef TRIBUTARY_HAS_NCCL
  if (nccl_serves(all)) {
    return make_nccl_communicator(communicator, cuda_ordinal(name), Deadline::after(kStartTimeout),
                                  cuda_stream(backend));
  }
#endif
  return make_staged_communicator(backend, communicator);
}

}  // namespace

WorkerDevice open_cuda(std::string_view name, int threads, Communicator& communicator,
                       const BackendOptions& options) {
  const std::string own_name = device_name(name, communicator);
  WorkerDevice device;
  Offer mine;
  const Status made = status_of([&] {
    device.backend = make_backend(own_name, threads, options);
    describe_device(own_name, mine);
  });
  const std::vector<Offer> all =
      gather_values(communicator, made, mine, Deadline::after(kStartTimeout));
  device.exchange = make_exchange(own_name, all, *device.backend, communicator);
  return device;
}

}  // namespace tributary
