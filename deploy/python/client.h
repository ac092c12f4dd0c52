// tributary.Client: a tier as Python reaches it.
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

/// What all clients are told: `timeout` in seconds, of calls that are given none. Throws
/// kInvalidArgument for what is outside its bounds.
[[nodiscard]] TierClientConfig call_config(double timeout, std::int64_t max_in_flight_bytes);

void bind_client(nanobind::module_& module);

}  // namespace tributary::python
