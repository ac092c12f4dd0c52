#include "deploy/bench/collective_series.h"

#include <algorithm>
#include <chrono>
#include <span>

namespace tributary::bench {
namespace {

Deadline ample_deadline() {
  return Deadline::after(std::chrono::seconds(60));
}

}  // namespace

std::string_view collective_name(Collective collective) noexcept {
  switch (collective) {
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllToAll:
      return "all_to_all";
  }
  return "unknown";
}

CollectiveSeries::CollectiveSeries(Communicator& communicator, Collective collective,
                                   std::size_t bytes)
    : communicator_(communicator),
      collective_(collective),
      counts_(static_cast<std::size_t>(communicator.size()), bytes),
      block_(bytes),
      send_(collective == Collective::kAllToAll ? bytes * counts_.size() : 0),
      recv_(collective == Collective::kBroadcast ? 0 : bytes * counts_.size()) {}

double CollectiveSeries::run() {
  (void)maximum(communicator_, 0);
  const auto begin = Deadline::Clock::now();
  Status status;
  switch (collective_) {
    case Collective::kBroadcast:
      status = communicator_.broadcast(block_, 0, ample_deadline());
      break;
    case Collective::kAllGather:
      status = communicator_.all_gather(block_, recv_, counts_, ample_deadline());
      break;
    case Collective::kAllToAll:
      status = communicator_.all_to_all(send_, counts_, recv_, counts_, ample_deadline());
      break;
  }
  const std::chrono::duration<double, std::micro> time = Deadline::Clock::now() - begin;
  status.throw_if_error();
  return time.count();
}

double maximum(Communicator& communicator, double value) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<double> values(ranks);
  const std::vector<std::size_t> counts(ranks, sizeof(double));
  communicator
      .all_gather(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(values)),
                  counts, ample_deadline())
      .throw_if_error();
  return *std::ranges::max_element(values);
}

}  // namespace tributary::bench
