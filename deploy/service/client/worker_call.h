// The requests of one call to workers. Used only inside deploy/service/client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// Used by one thread. The destructor forgets unanswered requests: later replies are dropped, and
/// the caller's memory is not touched any more.
class WorkerCall {
 public:
  WorkerCall(WorkerConnections& connections, Deadline deadline)
      : connections_(connections), deadline_(deadline) {}
  ~WorkerCall();
  WorkerCall(const WorkerCall&) = delete;
  WorkerCall& operator=(const WorkerCall&) = delete;

  struct Message {
    const std::string& address;
    std::vector<Greeting> greetings;  // see WorkerRequest
    wire::MessageType type{};
    /// Makes the header, with the request's number.
    std::function<std::vector<std::byte>(std::uint64_t)> encode;
    // The caller's memory, touched until the call is destroyed; see WorkerRequest.
    std::vector<std::span<const std::byte>> payload = {};
    std::function<std::vector<std::span<std::byte>>(const wire::LayerReply&)> landing = {};
    bool repeatable = true;  // see WorkerRequest
  };
  /// Returns the request's index; waits for nothing.
  std::size_t send(Message message);
  /// Waits until the bytes in flight of all calls leave room for `bytes` more. They are given back
  /// when the next request that is sent has ended. Returns false at the deadline.
  [[nodiscard]] bool reserve(std::size_t bytes);

  /// Waits for one reply or for any failure of this request; never throws. A deadline that passes
  /// is kDeadlineExceeded.
  Status wait(std::size_t index);
  /// Call it after wait() returned ok.
  [[nodiscard]] const WorkerReply& reply(std::size_t index) { return requests_[index]->reply; }
  /// Whether some request of the call has failed, or was refused, so far.
  [[nodiscard]] bool failed() const { return connections_.failed(*call_); }
  /// Whether this one has.
  [[nodiscard]] bool failed(std::size_t index) const {
    return connections_.failed(*requests_[index]);
  }

 private:
  WorkerConnections& connections_;
  Deadline deadline_;
  std::shared_ptr<WorkerRequest::Call> call_ = std::make_shared<WorkerRequest::Call>();
  std::vector<std::shared_ptr<WorkerRequest>> requests_;
  std::size_t reserved_ = 0;
};

}  // namespace tributary
