// Blocks of a collective, and the checks that need no peer.
#include "core/interface/collective.h"

#include <algorithm>
#include <numeric>

namespace tributary {
namespace {

std::size_t sum(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

template <typename Byte>
std::span<Byte> block(std::span<Byte> blocks, std::span<const std::size_t> counts, int peer) {
  const auto index = static_cast<std::size_t>(peer);
  return blocks.subspan(sum(counts.first(index)), counts[index]);
}

Status expect_size(CollectiveKind kind, std::string_view what, std::size_t value,
                   std::size_t expected) {
  if (value == expected) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("{}: {} is {}, expected {}", collective_name(kind), what, value, expected)};
}

/// Ok if only `members` have a count other than 0.
Status expect_members(CollectiveKind kind, std::string_view what,
                      std::span<const std::size_t> counts, std::span<const int> members) {
  if (members.size() == counts.size()) return {};
  auto member = members.begin();
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if (member != members.end() && *member == static_cast<int>(rank)) {
      ++member;
    } else if (counts[rank] != 0) {
      return {
          ErrorCode::kInvalidArgument,
          fmt::format("{}: {} of rank {} is {}, expected 0: only ranks {} take part",
                      collective_name(kind), what, rank, counts[rank], fmt::join(members, ", "))};
    }
  }
  return {};
}

Status check_broadcast(const Collective& call, int rank, int ranks, std::span<const int> members) {
  if (call.root < 0 || call.root >= ranks) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{}: root is {}, expected 0 .. {}", collective_name(call.kind), call.root,
                        ranks - 1)};
  }
  if (!std::ranges::binary_search(members, call.root)) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{}: root is {}, but only ranks {} take part", collective_name(call.kind),
                        call.root, fmt::join(members, ", "))};
  }
  return rank == call.root ? expect_size(call.kind, "size of recv on the root", call.recv.size(), 0)
                           : expect_size(call.kind, "size of send", call.send.size(), 0);
}

Status check_gather(const Collective& call, std::size_t rank, std::size_t ranks,
                    std::span<const int> members) {
  Status status = expect_size(call.kind, "number of counts", call.recv_counts.size(), ranks);
  if (status.ok()) status = expect_members(call.kind, "count", call.recv_counts, members);
  if (status.ok()) {
    status = expect_size(call.kind, "size of send", call.send.size(), call.recv_counts[rank]);
  }
  return status;
}

Status check_exchange(const Collective& call, std::size_t rank, std::size_t ranks,
                      std::span<const int> members) {
  Status status = expect_size(call.kind, "number of send counts", call.send_counts.size(), ranks);
  if (status.ok()) {
    status = expect_size(call.kind, "number of receive counts", call.recv_counts.size(), ranks);
  }
  if (status.ok()) status = expect_members(call.kind, "send count", call.send_counts, members);
  if (status.ok()) status = expect_members(call.kind, "receive count", call.recv_counts, members);
  if (status.ok()) {
    status = expect_size(call.kind, "size of send", call.send.size(), sum(call.send_counts));
  }
  if (status.ok() && call.send_counts[rank] != call.recv_counts[rank]) {
    status = {ErrorCode::kInvalidArgument,
              fmt::format("{}: rank {} sends {} bytes to itself, but expects {}",
                          collective_name(call.kind), rank, call.send_counts[rank],
                          call.recv_counts[rank])};
  }
  return status;
}

}  // namespace

std::string_view collective_name(CollectiveKind kind) noexcept {
  switch (kind) {
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
  }
  return "unknown";
}

std::span<const std::byte> Collective::block_to(int peer) const {
  if (kind == CollectiveKind::kAllToAll) return block(send, send_counts, peer);
  // A root keeps its own block where it is.
  return kind == CollectiveKind::kBroadcast && peer == root ? std::span<const std::byte>() : send;
}

std::span<std::byte> Collective::block_from(int peer) const {
  if (kind != CollectiveKind::kBroadcast) return block(recv, recv_counts, peer);
  return peer == root ? recv : std::span<std::byte>();
}

Status check_collective(const Collective& call, int rank, int ranks, std::span<const int> members) {
  if (call.kind == CollectiveKind::kBroadcast) return check_broadcast(call, rank, ranks, members);
  const auto own = static_cast<std::size_t>(rank);
  const auto count = static_cast<std::size_t>(ranks);
  Status status = call.kind == CollectiveKind::kAllGather
                      ? check_gather(call, own, count, members)
                      : check_exchange(call, own, count, members);
  return status.ok()
             ? expect_size(call.kind, "size of recv", call.recv.size(), sum(call.recv_counts))
             : status;
}

std::size_t bytes_to_others(const Collective& call, int rank, std::span<const int> members) {
  return call.kind == CollectiveKind::kAllToAll
             ? call.send.size() - call.send_counts[static_cast<std::size_t>(rank)]
             : call.send.size() * (members.size() - 1);
}

}  // namespace tributary
