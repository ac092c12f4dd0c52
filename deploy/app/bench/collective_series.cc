#include "deploy/app/bench/collective_series.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "core/pool/gather_all.h"

namespace tributary::bench {
namespace {

Deadline ample_deadline() {
  return Deadline::after(std::chrono::seconds(60));
}

}  // namespace

CollectiveSeries::CollectiveSeries(Backend& backend, Communicator& communicator,
                                   Communicator& exchange, CollectiveKind kind, std::size_t bytes)
    : backend_(backend),
      communicator_(communicator),
      exchange_(exchange),
      kind_(kind),
      counts_(static_cast<std::size_t>(exchange.size()), bytes),
      send_(backend.allocate(kind == CollectiveKind::kAllToAll ? bytes * counts_.size() : bytes)),
      recv_(backend.allocate(bytes * counts_.size())) {
  // Memory that was never written may be one page of zeros, mapped many times: it fits every cache.
  backend_.upload(send_->data(), std::vector<std::byte>(send_->bytes()));
  backend_.synchronize(ample_deadline());
}

double CollectiveSeries::run() {
  (void)maximum(communicator_, 0);
  const auto begin = std::chrono::steady_clock::now();
  call();
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  return time.count();
}

void CollectiveSeries::call() {
  Status status = enqueue();
  if (status.ok()) status = exchange_.complete(ample_deadline());
  // Waits after a failure too: enqueued work still uses the blocks, which may be freed next.
  const Status waited = status_of([&] { backend_.synchronize(ample_deadline()); });
  status.throw_if_error();
  waited.throw_if_error();
}

Status CollectiveSeries::enqueue() {
  const std::span send(send_->data(), send_->bytes());
  const std::span recv(recv_->data(), recv_->bytes());
  return kind_ == CollectiveKind::kAllGather
             ? exchange_.all_gather(send, recv, counts_, ample_deadline())
             : exchange_.all_to_all(send, counts_, recv, counts_, ample_deadline());
}

double maximum(Communicator& communicator, double value) {
  std::vector<double> values;
  gather_all(communicator, value, values, ample_deadline()).throw_if_error();
  return *std::ranges::max_element(values);
}

}  // namespace tributary::bench
