// By which machine's constants a pool places sequences and chooses exchanges.
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
  std::string source;  // for people: of which machine, and whether measured
};

/// Workers of each host, where every host has as many neighbours in rank (the last may have fewer);
/// else 1: all links are taken for the network's.
[[nodiscard]] int workers_per_node(std::span<const std::string_view> host_of_rank);

/// Called by all ranks together. Rank 0 reads what `name_or_path` says (find_machine), and all come
/// to the same; every rank throws what it fails with.
[[nodiscard]] PoolCosts agree_on_costs(const std::string& name_or_path, std::string_view host,
                                       Communicator& communicator);

}  // namespace tributary
