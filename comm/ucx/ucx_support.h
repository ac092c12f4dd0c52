// Owners of UCX objects, and UCX's errors as Status.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/error.h"

namespace tributary::ucx {

/// `what` names the attempt: "connection to 10.0.0.1:7070".
[[nodiscard]] Status to_status(std::string_view what, ucs_status_t status);

/// Throws kIo unless UCS_OK.
void check(std::string_view what, ucs_status_t status);

/// A context and its only worker, used by the thread that makes it: UCX uses no locks, and since
/// version 1.18 it aborts a process in which another thread drives the worker.
class Worker {
 public:
  /// The value that UCX stores for us in every request of this worker: the number of its send or
  /// receive.
  using RequestTag = std::uint64_t;

  /// `devices`: the network devices that UCX uses unless the operator has chosen others, separated
  /// by commas; empty: all. Throws kIo.
  Worker(bool shared_memory, const std::string& devices);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// The address for endpoints to this worker.
  [[nodiscard]] std::vector<std::byte> address() const;
  /// Throws kInternal on any other thread than the one that made it, with any version of UCX.
  [[nodiscard]] ucp_worker_h get() const {
    if (std::this_thread::get_id() != owner_) refuse_thread();
    return worker_;
  }
  /// Readable when progress() may have work. Wait for it after arm().
  [[nodiscard]] int event_fd() const noexcept { return event_fd_; }
  [[nodiscard]] std::size_t max_header_bytes() const noexcept { return max_header_bytes_; }
  /// Returns false if progress() has work: do not sleep then.
  [[nodiscard]] bool arm() const { return ucp_worker_arm(get()) == UCS_OK; }

 private:
  [[noreturn]] static void refuse_thread();

  const std::thread::id owner_ = std::this_thread::get_id();
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::size_t max_header_bytes_ = 0;
};

/// UCX's names of the RDMA ports that have a link: `mlx5_0:1,mlx5_1:1`. They listen on no address.
[[nodiscard]] std::string rdma_ports();

}  // namespace tributary::ucx
