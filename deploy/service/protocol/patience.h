// How long a restart of the control plane may take, as its pools, its clients and itself see it:
// three times that only work together.
#pragma once

#include <chrono>

namespace tributary {

/// A pool without a control plane tries to register at least so often.
inline constexpr std::chrono::milliseconds kPoolRetry{1'000};
/// So long after its start a control plane says `unavailable`, not `not_found`, of a sequence of an
/// earlier one: its pool may still register.
inline constexpr std::chrono::milliseconds kSettleTime{2'000};
/// A client asks again for so long. It begins when the old control plane ends, before the settling
/// time does: what is left of it is for the new one to be started.
inline constexpr std::chrono::milliseconds kClientPatience{5'000};

static_assert(kPoolRetry < kSettleTime, "a pool that tries every second would come too late");
static_assert(2 * kSettleTime < kClientPatience, "a client would give up before a pool is back");

}  // namespace tributary
