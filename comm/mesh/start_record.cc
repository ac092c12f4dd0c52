#include "comm/mesh/start_record.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace tributary::mesh {

void StartRecord::add(const Collective& call) {
  if (closed_ || call.kind == CollectiveKind::kAllToAll) return;
  const bool gather = call.kind == CollectiveKind::kAllGather;
  const std::span<const std::byte> bytes = gather ? call.recv : call.send;
  Call& kept = calls_.emplace_back();
  kept.bytes.assign(bytes.begin(), bytes.end());
  if (gather) kept.counts.assign(call.recv_counts.begin(), call.recv_counts.end());
}

Status StartRecord::answer(int rank, Communicator& pair, Deadline deadline) {
  const auto other = static_cast<std::size_t>(rank);
  std::vector<Call> calls = calls_;
  std::vector<std::size_t> to(static_cast<std::size_t>(pair.size()));
  std::vector<std::size_t> from(to.size());
  for (Call& call : calls) {
    const bool gather = !call.counts.empty();
    to[other] = call.bytes.size();
    from[other] = gather ? call.counts[other] : 0;
    std::vector<std::byte> own(from[other]);
    if (Status status = pair.all_to_all(call.bytes, to, own, from, deadline); !status.ok()) {
      return status;
    }
    if (!gather) continue;
    const auto before = std::span(call.counts).first(other);
    const auto at = std::accumulate(before.begin(), before.end(), std::size_t{0});
    std::ranges::copy(own, call.bytes.begin() + static_cast<std::ptrdiff_t>(at));
  }
  calls_ = std::move(calls);
  return {};
}

}  // namespace tributary::mesh
