// Moves the bytes of a transfer once all participants have reached it on their streams.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/comm/nccl/emulated/state.h"

namespace tributary::test::nccl {
namespace {

/// Whether the operation's device may use the memory now. If not, sets the operation's fault.
bool usable(Operation& operation, const void* data, std::size_t bytes, const char* what) {
  const device::Allocation* const found =
      device::find_allocation(device::the_device(), data, bytes);
  if (found != nullptr && (found->pinned || found->device == operation.device)) return true;
  operation.fault =
      fmt::format("{} of rank {} ({} bytes) is not memory of {}", what, operation.rank, bytes,
                  found == nullptr ? "a device" : "its own device");
  return false;
}

void count(std::size_t bytes) {
  ++the_nccl().counters.transfers;
  the_nccl().counters.bytes += bytes;
}

/// Completes the sends and receives of one channel that match. Different sizes block it for good.
void match(Channel& channel) {
  while (!channel.sends.empty() && !channel.recvs.empty()) {
    Operation& send = *channel.sends.front();
    Operation& recv = *channel.recvs.front();
    if (send.bytes != recv.bytes) return;
    const bool readable = send.bytes == 0 || usable(send, send.from, send.bytes, "what is sent");
    const bool writable =
        send.bytes == 0 || usable(recv, recv.to, recv.bytes, "where it is received");
    if (readable && writable) {
      if (send.bytes > 0) std::memcpy(recv.to, send.from, send.bytes);
      count(send.bytes);
      send.done = recv.done = true;
    }
    channel.sends.pop_front();
    channel.recvs.pop_front();
  }
}

bool same(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.bytes == b.bytes && a.peer == b.peer;
}

using Parts = std::vector<std::shared_ptr<Operation>>;

/// Runs a collective that all ranks have reached.
void run(const Parts& parts) {
  const bool gathers = parts.front()->kind == Kind::kAllGather;
  const std::size_t bytes = parts.front()->bytes;
  const std::size_t whole = gathers ? bytes * parts.size() : bytes;
  bool good = true;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    Operation& part = *parts[rank];
    const bool reads = gathers || std::cmp_equal(part.peer, rank);
    good = (!reads || usable(part, part.from, bytes, "what is sent")) &&
           usable(part, part.to, whole, "where it is received") && good;
  }
  if (!good) return;
  for (const auto& part : parts) {
    if (gathers) {
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        std::memmove(part->to + rank * bytes, parts[rank]->from, bytes);
      }
    } else {
      std::memmove(part->to, parts[static_cast<std::size_t>(part->peer)]->from, bytes);
    }
    count(whole);
    part->done = true;
  }
}

void post_collective(Clique& clique, const std::shared_ptr<Operation>& operation) {
  const auto rank = static_cast<std::size_t>(operation->rank);
  const std::uint64_t index = clique.collectives[rank]++;
  Parts& parts = clique.arrivals[index];
  parts.resize(clique.devices.size());
  parts[rank] = operation;
  const bool all = std::ranges::all_of(
      parts, [&](const auto& part) { return part != nullptr && same(*part, *operation); });
  if (!all) return;
  run(parts);
  clique.arrivals.erase(index);
}

void post(Clique& clique, const std::shared_ptr<Operation>& operation) {
  if (operation->kind == Kind::kSend) {
    Channel& channel = clique.channels[{operation->rank, operation->peer}];
    channel.sends.push_back(operation);
    match(channel);
  } else if (operation->kind == Kind::kRecv) {
    Channel& channel = clique.channels[{operation->peer, operation->rank}];
    channel.recvs.push_back(operation);
    match(channel);
  } else {
    post_collective(clique, operation);
  }
}

}  // namespace

bool arrive(Clique& clique, const std::shared_ptr<Launch>& launch) {
  if (launch->aborted) return true;
  if (!launch->arrived) {
    launch->arrived = true;
    for (Operation& operation : launch->operations) {
      post(clique, std::shared_ptr<Operation>(launch, &operation));
    }
  }
  return std::ranges::all_of(launch->operations, &Operation::done) ||
         !std::ranges::all_of(launch->operations, &std::string::empty, &Operation::fault);
}

void withdraw(Clique& clique, int rank) {
  for (auto& [ends, channel] : clique.channels) {
    if (ends.first == rank) channel.sends.clear();
    if (ends.second == rank) channel.recvs.clear();
  }
  for (auto& [index, parts] : clique.arrivals) parts[static_cast<std::size_t>(rank)] = nullptr;
}

}  // namespace tributary::test::nccl
