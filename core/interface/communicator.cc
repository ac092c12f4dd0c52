#include "core/interface/communicator.h"

#include <numeric>

namespace tributary {
namespace {

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

Status invalid(std::string_view call, std::string_view what, std::size_t value,
               std::size_t expected) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("{}: {} is {}, expected {}", call, what, value, expected)};
}

}  // namespace

Status Communicator::finish(Status status) {
  if (!status.ok() && poison_.ok()) {
    poison_ = status;
    do_poison(status);
  }
  return status;
}

void Communicator::poison(const Status& reason) {
  if (!poison_.ok() || reason.ok()) return;
  poison_ = reason;
  do_poison(reason);
}

Status Communicator::look_for_failure() {
  return poison_.ok() ? finish(do_look_for_failure()) : poison_;
}

Status Communicator::complete(Deadline deadline) {
  return poison_.ok() ? finish(do_complete(deadline)) : poison_;
}

Status Communicator::broadcast(std::span<std::byte> data, int root, Deadline deadline) {
  if (!poison_.ok()) return poison_;
  if (root < 0 || root >= size_) {
    return finish({ErrorCode::kInvalidArgument,
                   fmt::format("broadcast: root is {}, expected 0 .. {}", root, size_ - 1)});
  }
  Status status = do_broadcast(data, root, deadline);
  if (status.ok() && root == rank_) {
    traffic_.broadcast_bytes += data.size() * static_cast<std::size_t>(size_ - 1);
  }
  return finish(std::move(status));
}

Status Communicator::all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                                std::span<const std::size_t> counts, Deadline deadline) {
  if (!poison_.ok()) return poison_;
  const auto ranks = static_cast<std::size_t>(size_);
  if (counts.size() != ranks) {
    return finish(invalid("all_gather", "number of counts", counts.size(), ranks));
  }
  const std::size_t own = counts[static_cast<std::size_t>(rank_)];
  if (send.size() != own) return finish(invalid("all_gather", "size of send", send.size(), own));
  if (recv.size() != sum(counts)) {
    return finish(invalid("all_gather", "size of recv", recv.size(), sum(counts)));
  }
  Status status = do_all_gather(send, recv, counts, deadline);
  if (status.ok()) traffic_.all_gather_bytes += own * (ranks - 1);
  return finish(std::move(status));
}

Status Communicator::all_to_all(std::span<const std::byte> send,
                                std::span<const std::size_t> send_counts, std::span<std::byte> recv,
                                std::span<const std::size_t> recv_counts, Deadline deadline) {
  if (!poison_.ok()) return poison_;
  const auto ranks = static_cast<std::size_t>(size_);
  if (send_counts.size() != ranks) {
    return finish(invalid("all_to_all", "number of send counts", send_counts.size(), ranks));
  }
  if (recv_counts.size() != ranks) {
    return finish(invalid("all_to_all", "number of receive counts", recv_counts.size(), ranks));
  }
  if (send.size() != sum(send_counts)) {
    return finish(invalid("all_to_all", "size of send", send.size(), sum(send_counts)));
  }
  if (recv.size() != sum(recv_counts)) {
    return finish(invalid("all_to_all", "size of recv", recv.size(), sum(recv_counts)));
  }
  Status status = do_all_to_all(send, send_counts, recv, recv_counts, deadline);
  if (status.ok()) {
    traffic_.all_to_all_bytes += send.size() - send_counts[static_cast<std::size_t>(rank_)];
  }
  return finish(std::move(status));
}

}  // namespace tributary
