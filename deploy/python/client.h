// tributary.Client: Python's client of a tier.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "deploy/python/tier.h"

namespace tributary::python {

struct Client {
  SharedTier tier;
  std::string url;
};

/// The configuration that all clients share: `timeout` in seconds, for calls without their own.
/// Throws kInvalidArgument for values outside their bounds.
[[nodiscard]] TierClientConfig call_config(double timeout, std::int64_t max_in_flight_bytes);

void bind_client(nanobind::module_& module);

}  // namespace tributary::python
