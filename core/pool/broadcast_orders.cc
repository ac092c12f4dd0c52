#include "core/pool/broadcast_orders.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace tributary {
namespace {

/// An order travels as a block of fixed size, and a second one where it is longer.
constexpr std::size_t kFirstBlock = 4096;
constexpr std::size_t kInlined = kFirstBlock - sizeof(std::uint64_t);

}  // namespace

Status BroadcastOrders::send(std::span<const std::byte> order, Deadline deadline) {
  std::array<std::byte, kFirstBlock> block{};
  const auto size = static_cast<std::uint64_t>(order.size());
  std::memcpy(block.data(), &size, sizeof(size));
  const std::size_t inlined = std::min(order.size(), kInlined);
  std::copy_n(order.begin(), inlined, block.begin() + sizeof(size));
  Status status = communicator_.broadcast(block, 0, deadline);
  if (!status.ok() || inlined == order.size()) return status;
  std::vector<std::byte> rest(order.begin() + static_cast<std::ptrdiff_t>(inlined), order.end());
  return communicator_.broadcast(rest, 0, deadline);
}

Status BroadcastOrders::wait(std::vector<std::byte>& order, Deadline deadline,
                             const std::function<Status()>& /*look*/) {
  std::array<std::byte, kFirstBlock> block{};
  Status status = communicator_.broadcast(block, 0, deadline);
  if (!status.ok()) return status;
  std::uint64_t size = 0;
  std::memcpy(&size, block.data(), sizeof(size));
  order.resize(size);
  const std::size_t inlined = std::min(order.size(), kInlined);
  std::copy_n(block.begin() + sizeof(size), inlined, order.begin());
  if (inlined == order.size()) return status;
  return communicator_.broadcast(std::span(order).subspan(inlined), 0,
                                 Deadline::after(rest_timeout_));
}

}  // namespace tributary
