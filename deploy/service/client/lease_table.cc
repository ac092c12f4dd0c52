#include "deploy/service/client/lease_table.h"

#include <algorithm>
#include <chrono>

namespace tributary {
namespace {

Duration period(const SequenceHandle& sequence) {
  return std::chrono::milliseconds(std::max(1, sequence.lease_ms / 3));
}

/// A renewal takes effect when it arrives: the answer only says which sequences to forget. So a
/// home that answers late, or not at all, does not delay the renewals at other homes.
constexpr std::chrono::milliseconds kPatience{200};

}  // namespace

void LeaseTable::keep(const SequenceHandle& sequence, Time now) {
  kept_.insert_or_assign(key_of(sequence), Kept{sequence, now + period(sequence), true});
}

void LeaseTable::take_over(const SequenceHandle& sequence, Time now) {
  const auto [found, added] = kept_.try_emplace(key_of(sequence), Kept{sequence, now});
  if (added || sequence.epoch < found->second.sequence.epoch) return;
  found->second.sequence = sequence;
  found->second.due = now;
}

void LeaseTable::update(const SequenceHandle& sequence) {
  const auto found = kept_.find(key_of(sequence));
  if (found == kept_.end() || sequence.epoch < found->second.sequence.epoch) return;
  found->second.sequence = sequence;
}

void LeaseTable::forget(const SequenceHandle& sequence) {
  const auto found = kept_.find(key_of(sequence));
  if (found == kept_.end() || sequence.epoch < found->second.sequence.epoch) return;
  kept_.erase(found);
}

std::optional<Time> LeaseTable::next() const {
  if (kept_.empty()) return std::nullopt;
  return std::ranges::min_element(kept_, {}, [](const auto& entry) { return entry.second.due; })
      ->second.due;
}

LeaseTable::Round LeaseTable::take_due(Time now) {
  Round round{.due = {}, .began = now, .patience = kPatience};
  for (auto& [key, kept] : kept_) {
    const Duration each = period(kept.sequence);
    round.patience = std::min(round.patience, each);
    if (kept.due - each / 5 > now) continue;
    round.due.push_back({kept.sequence, !kept.confirmed});
    kept.due = now + each;
  }
  return round;
}

void LeaseTable::answered(const Renewal& renewal, ErrorCode code, std::int32_t home, Time began) {
  const auto found = kept_.find(key_of(renewal.sequence));
  if (found == kept_.end()) return;
  Kept& kept = found->second;
  if (code == ErrorCode::kOk) {
    kept.confirmed = true;
    kept.sequence.home = home;
  } else if (code == ErrorCode::kNotFound || code == ErrorCode::kPoolLost ||
             code == ErrorCode::kPermissionDenied) {
    kept_.erase(found);
  } else {
    // It may not have arrived: the next one comes sooner, while the lease still runs, and through
    // another worker, since this one may be lost.
    const auto workers = static_cast<int>(kept.sequence.addresses.size());
    if (kept.sequence.home == renewal.sequence.home) {
      kept.sequence.home = (kept.sequence.home + 1) % std::max(workers, 1);
    }
    kept.due = std::min(kept.due, began + period(renewal.sequence) / 4);
  }
}

}  // namespace tributary
