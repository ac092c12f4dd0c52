#include "core/interface/communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/interface/clock.h"

namespace tributary {

namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Throws kInvalidArgument unless `members` can go on out of `present`, `rank` among them.
void check_survivors(std::span<const int> members, int rank, std::span<const int> present) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!std::ranges::binary_search(present, members[i])) {
      fail(ErrorCode::kInvalidArgument, "survivors: rank {} is not one of the members {}",
           members[i], fmt::join(present, ", "));
    }
    if (i > 0 && members[i] <= members[i - 1]) {
      fail(ErrorCode::kInvalidArgument, "survivors: rank {} follows rank {}, expected ascending",
           members[i], members[i - 1]);
    }
  }
  if (!std::ranges::binary_search(members, rank)) {
    fail(ErrorCode::kInvalidArgument, "survivors: rank {} itself is not among [{}]", rank,
         fmt::join(members, ", "));
  }
}

}  // namespace

Communicator::Communicator(int rank, int size) : Communicator(rank, size, all_ranks(size)) {}

Communicator::Communicator(int rank, int size, std::span<const int> members)
    : Communicator(rank, size, members, steady_clock()) {}

Communicator::Communicator(int rank, int size, std::span<const int> members, Clock& clock)
    : rank_(rank), size_(size), members_(members.begin(), members.end()), clock_(clock) {}

Communicator::Communicator(int rank, int size, Clock& clock)
    : Communicator(rank, size, all_ranks(size), clock) {}

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

std::unique_ptr<Communicator> Communicator::survivors(std::span<const int> members,
                                                      std::uint64_t generation) {
  check_survivors(members, rank_, takes_newcomers() ? all_ranks(size_) : members_);
  std::unique_ptr<Communicator> made = do_survivors(members, generation);
  poison({ErrorCode::kCommunicatorPoisoned,
          fmt::format("rank {} goes on with ranks {} alone", rank_, fmt::join(members, ", "))});
  return made;
}

Status Communicator::look_for_failure() {
  return poison_.ok() ? finish(look()) : poison_;
}

Status Communicator::complete(Deadline deadline) {
  return poison_.ok() ? finish(do_complete(deadline)) : poison_;
}

void Communicator::interrupt(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!interruption_.ok() || reason.ok()) return;
    interruption_ = reason;
  }
  interrupted_ = true;
  do_interrupt(reason);
}

Status Communicator::look() {
  if (!interrupted_) return do_look_for_failure();
  const std::lock_guard lock(mutex_);
  return interruption_;
}

Status Communicator::run(const Collective& call, Deadline deadline) {
  if (!poison_.ok()) return poison_;
  Status status = interrupted_ ? look() : Status();
  if (status.ok()) status = check_collective(call, rank_, size_, members_);
  const Time now = clock_.now();
  if (status.ok() && deadline.heard_from(now).expired(now)) {
    // If a rank is late because of a failed peer, it reports the peer's failure.
    status = look();
    if (status.ok()) {
      poison(
          {ErrorCode::kDeadlineExceeded, fmt::format("{}: the deadline passed before rank {} began",
                                                     collective_name(call.kind), rank_)});
      // Another rank may have been late meanwhile, and be what the others report.
      if (Status first = look(); !first.ok()) poison_ = std::move(first);
      return poison_;
    }
  }
  if (status.ok()) status = do_collective(call, deadline);
  if (status.ok()) traffic_[call.kind] += bytes_to_others(call, rank_, members_);
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
