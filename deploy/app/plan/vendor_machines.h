// Constants of the cost model where nothing was measured: vendors' figures.
#pragma once

#include <string>
#include <string_view>

#include "deploy/app/bench/machine_file.h"

namespace tributary {

struct VendorMachine {
  Machine machine;
  double memory_gib = 0;
};

/// `h100` or `h200`; throws kNotFound with the list.
[[nodiscard]] VendorMachine vendor_machine(std::string_view gpu);

}  // namespace tributary
