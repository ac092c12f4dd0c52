// An item on its way into a round.
#pragma once

#include <cstdint>

#include "core/base/deadline.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary {

struct WaitingItem {
  using Time = Deadline::Clock::time_point;
  int rank = 0;  // its home
  std::uint64_t ticket = 0;
  std::uint32_t index = 0;  // in the client's request
  Time arrival{};
  Time deadline{};
  wire::RequestItem item;
};

}  // namespace tributary
