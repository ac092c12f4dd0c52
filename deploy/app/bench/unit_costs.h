// Measures a worker's cost for each part of a step, one kind of work at a time, and fits the
// constants of the cost model to it.
#pragma once

#include <string>
#include <vector>

#include "core/cost/machine_costs.h"
#include "core/interface/backend.h"
#include "core/interface/communicator.h"

namespace tributary::bench {

struct AttendLine {
  int heads = 0;
  int batch = 0;
  int context = 0;
  double us = 0;      // by the device's clock, where it has one
  double gflops = 0;  // of one worker
  double gb_s = 0;    // rows read, of one worker
};
struct ExchangeLine {
  std::string collective;
  std::size_t bytes = 0;  // of a block between two workers
  double us = 0;
  double gb_s = 0;  // what a worker receives from others
};

/// Every rank makes the same calls, and all are busy at the same time: `communicator` is the
/// pool's, in the host's memory. `seconds`: per line. The functions set their constants in `costs`,
/// and throw the errors of the backend or a communicator.
[[nodiscard]] std::vector<AttendLine> measure_attend(Backend& backend, Communicator& communicator,
                                                     RowFormat format, double seconds,
                                                     MachineCosts& costs);
void measure_merge(Backend& backend, Communicator& communicator, double seconds,
                   MachineCosts& costs);
void measure_records(Backend& backend, Communicator& communicator, double seconds,
                     MachineCosts& costs);
void measure_projection(Backend& backend, Communicator& communicator, double seconds,
                        MachineCosts& costs);
/// `exchange` carries queries and partial states, and takes pointers of the backend's memory; it
/// may be `communicator` if that memory is the host's. Times are the host's until all is done. With
/// one rank, returns nothing.
[[nodiscard]] std::vector<ExchangeLine> measure_exchange(Backend& backend,
                                                         Communicator& communicator,
                                                         Communicator& exchange, double seconds,
                                                         MachineCosts& costs);

/// Measures how late the other ranks are for an exchange after they waited for one. With one rank,
/// does nothing.
void measure_lateness(Backend& backend, Communicator& communicator, Communicator& exchange,
                      MachineCosts& costs);

}  // namespace tributary::bench
