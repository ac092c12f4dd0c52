#include "core/interface/communicator.h"

namespace tributary {

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

/// A call may be made at this time.
Status Communicator::check(std::string_view what, Deadline deadline) {
  if (!deadline.expired()) return {};
  // A rank that is late because of a failed peer reports the peer's failure.
  Status status = do_look_for_failure();
  if (!status.ok()) return status;
  return {ErrorCode::kDeadlineExceeded,
          fmt::format("{}: the deadline passed before rank {} began", what, rank_)};
}

Status Communicator::check_call(const Collective& call, Deadline deadline) {
  Status status = check_collective(call, rank_, size_);
  return status.ok() ? check(collective_name(call.kind), deadline) : status;
}

Status Communicator::run(const Collective& call, Deadline deadline) {
  if (!poison_.ok()) return poison_;
  Status status = check_call(call, deadline);
  if (status.ok() && begun_count_ > 0) {
    status = {
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {} of rank {} was begun and has not ended", collective_name(call.kind),
                    collective_name(begun_[first_begun_].call.kind), rank_)};
  }
  if (status.ok()) status = do_collective(call, deadline);
  if (status.ok()) traffic_[call.kind] += bytes_to_others(call, rank_, size_);
  return finish(std::move(status));
}

Status Communicator::begin(const Collective& call, Deadline deadline) {
  if (!poison_.ok()) return poison_;
  Status status = check_call(call, deadline);
  if (status.ok() && begun_count_ == kMostBegun) {
    status = {ErrorCode::kInvalidArgument,
              fmt::format("{}: {} collectives of rank {} were begun and have not ended, at most {}",
                          collective_name(call.kind), begun_count_, rank_, kMostBegun)};
  }
  if (!status.ok()) return finish(std::move(status));
  Begun& begun = begun_[(first_begun_ + begun_count_++) % kMostBegun];
  begun.send_counts.assign(call.send_counts.begin(), call.send_counts.end());
  begun.recv_counts.assign(call.recv_counts.begin(), call.recv_counts.end());
  begun.call = call;
  begun.call.send_counts = begun.send_counts;
  begun.call.recv_counts = begun.recv_counts;
  return finish(do_begin(begun.call, deadline));
}

Status Communicator::end(Deadline deadline) {
  if (!poison_.ok()) return poison_;
  if (begun_count_ == 0) {
    return finish({ErrorCode::kInvalidArgument,
                   fmt::format("end of a collective: rank {} has begun none", rank_)});
  }
  const Collective& call = begun_[first_begun_].call;
  Status status = check(collective_name(call.kind), deadline);
  if (status.ok()) status = do_end(call, deadline);
  if (status.ok()) traffic_[call.kind] += bytes_to_others(call, rank_, size_);
  first_begun_ = (first_begun_ + 1) % kMostBegun;
  --begun_count_;
  return finish(std::move(status));
}

Status Communicator::broadcast(std::span<std::byte> data, int root, Deadline deadline) {
  Collective call{.kind = CollectiveKind::kBroadcast, .root = root};
  if (root == rank_) {
    call.send = data;
  } else {
    call.recv = data;
  }
  return run(call, deadline);
}

Status Communicator::all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                                std::span<const std::size_t> counts, Deadline deadline) {
  return run(
      {.kind = CollectiveKind::kAllGather, .send = send, .recv = recv, .recv_counts = counts},
      deadline);
}

Status Communicator::all_to_all(std::span<const std::byte> send,
                                std::span<const std::size_t> send_counts, std::span<std::byte> recv,
                                std::span<const std::size_t> recv_counts, Deadline deadline) {
  return run({.kind = CollectiveKind::kAllToAll,
              .send = send,
              .recv = recv,
              .send_counts = send_counts,
              .recv_counts = recv_counts},
             deadline);
}

}  // namespace tributary
