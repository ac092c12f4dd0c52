// A collective as data: one rank's part in it. Communicators check, count, execute and forward this
// one struct.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/error.h"

namespace tributary {

enum class CollectiveKind : std::uint8_t { kBroadcast, kAllGather, kAllToAll };
inline constexpr std::array kCollectiveKinds = {
    CollectiveKind::kBroadcast, CollectiveKind::kAllGather, CollectiveKind::kAllToAll};
/// `broadcast`, `all_gather`, `all_to_all`.
[[nodiscard]] std::string_view collective_name(CollectiveKind kind) noexcept;

/// The part of one rank. Views of the caller's memory: blocks lie in rank order without gaps.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBroadcast;
  /// The rank that a broadcast comes from. It sends only; the others receive only.
  int root = 0;
  /// The bytes that this rank sends: one block that goes to every rank, or for kAllToAll one block
  /// for each.
  std::span<const std::byte> send = {};
  /// The bytes that this rank receives: the block of the root, or one block from each rank.
  std::span<std::byte> recv = {};
  /// [ranks] bytes of the blocks of `send`; for kAllToAll only.
  std::span<const std::size_t> send_counts = {};
  /// [ranks] bytes of the blocks of `recv`; for kAllGather and kAllToAll.
  std::span<const std::size_t> recv_counts = {};

  /// The block that goes to `peer`, which may be this rank itself.
  [[nodiscard]] std::span<const std::byte> block_to(int peer) const;
  /// The block that comes from `peer`; `peer` sends as many bytes.
  [[nodiscard]] std::span<std::byte> block_from(int peer) const;
};

/// Ok, or kInvalidArgument with the first error in `rank`'s part in a group of `ranks`, of which
/// `members` (ascending) take part: a root, a number of counts, the count of a rank that does not
/// take part, a buffer's size, or the block of `rank` to itself.
[[nodiscard]] Status check_collective(const Collective& call, int rank, int ranks,
                                      std::span<const int> members);

/// Payload bytes that `rank` sends to the other ones of `members` with a valid `call`.
[[nodiscard]] std::size_t bytes_to_others(const Collective& call, int rank,
                                          std::span<const int> members);

}  // namespace tributary
