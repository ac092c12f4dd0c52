// The time that a restart of the control plane may take, as its pools, its clients and itself see
// it: three times that only work together.
#pragma once

#include <chrono>

namespace tributary {

/// A pool without a control plane tries to register at this interval or more often.
inline constexpr std::chrono::milliseconds kPoolRetry{1'000};
/// For this long after its start a control plane answers `unavailable`, not `not_found`, for a
/// sequence of an earlier one: its pool may still register.
inline constexpr std::chrono::milliseconds kSettleTime{2'000};
/// A client retries for this long. The time begins when the old control plane ends, before the
/// settling time does: the difference is left for the new one to start.
inline constexpr std::chrono::milliseconds kClientPatience{5'000};

static_assert(kPoolRetry < kSettleTime, "a pool that tries every second would come too late");
static_assert(2 * kSettleTime < kClientPatience, "a client would give up before a pool is back");

}  // namespace tributary
