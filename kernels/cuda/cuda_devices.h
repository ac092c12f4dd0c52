// The devices of this machine that the CUDA backend can use, and what is missing.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace tributary {

struct CudaDevice {
  int ordinal = 0;  // as CUDA counts the devices that this process may use
  std::string name;
  int compute_capability = 0;  // 80, 90, ...
  std::size_t memory_bytes = 0;
  /// The same for every process that uses the device, on this machine or another.
  std::array<std::byte, 16> uuid{};
};

/// A version as CUDA counts them: 13010 is 13.1. 0: there is none.
struct CudaStatus {
  int driver_version = 0;
  int runtime_version = 0;
  std::vector<CudaDevice> devices;
  /// The reason why no backend can be made on this machine, in one line; empty if one can.
  std::string problem;
  /// The reason why a backend can attend and merge but has no products (weights): cuBLASLt is
  /// missing. Empty if it is there.
  std::string products_problem;
};

/// Asks the driver at every call. Does not throw if something is missing.
[[nodiscard]] CudaStatus cuda_status();

/// Makes the device current for this thread. Throws kUnsupported if no backend can be made here,
/// kInvalidArgument if this process may not use a device of that number.
[[nodiscard]] CudaDevice open_cuda_device(int ordinal);

/// `13.1` of 13010.
[[nodiscard]] std::string cuda_version_text(int version);

}  // namespace tributary
