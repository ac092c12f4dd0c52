#include "deploy/service/worker/leader/pool_costs.h"

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <vector>

#include "core/base/error.h"
#include "core/pool/gather_all.h"
#include "deploy/service/protocol/machine_file.h"

namespace tributary {
int workers_per_node(std::span<const std::string_view> host_of_rank) {
  std::size_t size = 1;
  while (size < host_of_rank.size() && host_of_rank[size] == host_of_rank[0]) ++size;
  for (std::size_t r = 0; r < host_of_rank.size(); ++r) {
    const std::size_t first = r / size * size;
    const bool with_first = host_of_rank[r] == host_of_rank[first];
    const bool next_is_other = r != first || r == 0 || host_of_rank[r] != host_of_rank[r - 1];
    if (!with_first || !next_is_other) return 1;
  }
  return static_cast<int>(size);
}

PoolCosts agree_on_costs(const std::string& name_or_path, std::string_view host,
                         Communicator& communicator, Deadline deadline) {
  struct Card {
    MachineCosts costs;
    Text host{}, source{};
  };
  Card mine;
  set_text(mine.host, host);
  const Status read = status_of([&] {
    if (communicator.rank() != 0) return;
    const Machine machine = find_machine(name_or_path);
    mine.costs = machine.costs;
    set_text(mine.source,
             fmt::format("{}: {}; {}", name_or_path, machine.source, machine.description));
  });
  const std::vector<Card> all = gather_values(communicator, read, mine, deadline);
  std::vector<std::string_view> hosts;
  hosts.reserve(all.size());
  for (const Card& card : all) hosts.emplace_back(card.host.data());
  // Rank 0's, also where another process on another host takes a lost worker's place later.
  int per_node = workers_per_node(hosts);
  communicator.broadcast(std::as_writable_bytes(std::span(&per_node, 1)), 0, deadline)
      .throw_if_error();
  return {.costs = all.front().costs,
          .workers_per_node = per_node,
          .source = all.front().source.data()};
}

}  // namespace tributary
