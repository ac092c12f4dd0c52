// Owners of UCX objects, and its errors in our vocabulary.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace tributary::ucx {

/// `what` is what was tried: "connection to 10.0.0.1:7070".
[[nodiscard]] Status to_status(std::string_view what, ucs_status_t status);

/// Throws kIo unless UCS_OK.
void check(std::string_view what, ucs_status_t status);

/// A context and its only worker. Used by one thread at a time.
class Worker {
 public:
  /// What UCX keeps for us inside every request of this worker: the number of what it is about.
  using RequestTag = std::uint64_t;

  /// `devices`: of the network, with commas between, those that UCX uses unless the operator has
  /// chosen others; empty for all. Throws kIo.
  Worker(bool shared_memory, const std::string& devices);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// For endpoints towards it.
  [[nodiscard]] std::vector<std::byte> address() const;
  [[nodiscard]] ucp_worker_h get() const noexcept { return worker_; }
  /// Readable when there may be something to progress; to be waited for after arm().
  [[nodiscard]] int event_fd() const noexcept { return event_fd_; }
  [[nodiscard]] std::size_t max_header_bytes() const noexcept { return max_header_bytes_; }
  /// False when there is something to progress: do not sleep.
  [[nodiscard]] bool arm() noexcept { return ucp_worker_arm(worker_) == UCS_OK; }

 private:
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::size_t max_header_bytes_ = 0;
};

}  // namespace tributary::ucx
