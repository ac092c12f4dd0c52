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

CollectiveSeries::CollectiveSeries(Backend& backend, Communicator& communicator,
                                   Communicator& exchange, Collective collective, std::size_t bytes)
    : backend_(backend),
      communicator_(communicator),
      exchange_(exchange),
      collective_(collective),
      counts_(static_cast<std::size_t>(exchange.size()), bytes),
      send_(
          backend.allocate(collective == Collective::kAllToAll ? bytes * counts_.size() : bytes)) {
  // Memory that nobody wrote to may be one page of zeros again and again, which is in every cache.
  backend_.upload(send_->data(), std::vector<std::byte>(send_->bytes()));
  backend_.synchronize(ample_deadline());
  if (collective != Collective::kBroadcast) recv_ = backend_.allocate(bytes * counts_.size());
}

double CollectiveSeries::run() {
  (void)maximum(communicator_, 0);
  const auto begin = Deadline::Clock::now();
  call();
  const std::chrono::duration<double, std::micro> time = Deadline::Clock::now() - begin;
  return time.count();
}

void CollectiveSeries::call() {
  Status status = enqueue();
  if (status.ok()) status = exchange_.complete(ample_deadline());
  // After a failure too: what was enqueued goes on with blocks that may be freed next.
  const Status waited = status_of([&] { backend_.synchronize(ample_deadline()); });
  status.throw_if_error();
  waited.throw_if_error();
}

Status CollectiveSeries::enqueue() {
  const std::span send(send_->data(), send_->bytes());
  if (collective_ == Collective::kBroadcast) return exchange_.broadcast(send, 0, ample_deadline());
  const std::span recv(recv_->data(), recv_->bytes());
  return collective_ == Collective::kAllGather
             ? exchange_.all_gather(send, recv, counts_, ample_deadline())
             : exchange_.all_to_all(send, counts_, recv, counts_, ample_deadline());
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
