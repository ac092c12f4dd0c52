// A message in flight on a local transport, and the copy of its payload to the landing.
#pragma once

#include <cstdint>
#include <mutex>

#include "comm/transport/transport.h"
#include "core/base/error.h"

namespace tributary {

/// A message in flight. Its payload is the sender's memory, which is read only under `mutex` and
/// until `cancelled` is set: a cancellation waits for a copy in progress.
struct Transfer {
  std::uint64_t number = 0;  // among its sender's
  OutgoingMessage message;
  std::mutex mutex;
  bool cancelled = false;
};

/// Called on the receiver's thread. Returns kUnavailable if the transfer was cancelled, kInternal
/// for a landing of another size.
[[nodiscard]] Status copy_payload(Transfer& transfer, const Landing& landing);

}  // namespace tributary
