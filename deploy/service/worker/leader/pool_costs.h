// The machine whose constants a pool uses to place sequences and choose exchanges.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/cost/machine_costs.h"
#include "core/interface/communicator.h"

namespace tributary {

struct PoolCosts {
  MachineCosts costs;
  int workers_per_node = 1;
  std::string source;  // for people: the machine's name, and whether it was measured
};

/// Workers per host, if every host has the same number of neighbouring ranks (the last may have
/// fewer); otherwise 1: all links count as the network's.
[[nodiscard]] int workers_per_node(std::span<const std::string_view> host_of_rank);

/// Called by all ranks together. Rank 0 reads what `name_or_path` names (find_machine), and all get
/// the same constants; every rank throws rank 0's error.
[[nodiscard]] PoolCosts agree_on_costs(const std::string& name_or_path, std::string_view host,
                                       Communicator& communicator, Deadline deadline);

}  // namespace tributary
