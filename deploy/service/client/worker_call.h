// The requests of one call to workers. Used only inside deploy/service/client.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/wire/codec.h"
#include "core/base/deadline.h"
#include "core/base/error.h"
#include "deploy/service/client/worker_connections.h"
#include "deploy/service/protocol/admission.h"

namespace tributary {

/// Throws kInvalidArgument for a handle without that rank.
[[nodiscard]] inline const std::string& rank_address(const SequenceHandle& sequence, int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= sequence.addresses.size()) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: rank {}, its pool has {} workers", sequence.id,
         rank, sequence.addresses.size());
  }
  return sequence.addresses[static_cast<std::size_t>(rank)];
}
/// Of a sequence's worker that names `rank` instead of itself, where that has the address which was
/// asked: other processes have come in the places of lost ones since the handle was made.
[[nodiscard]] inline Status check_other(const SequenceHandle& sequence, int rank,
                                        const std::string& asked) {
  if (rank_address(sequence, rank) != asked) return {};
  return {ErrorCode::kWorkerLost,
          fmt::format("worker {}: it is not worker {} of sequence {} any more: see "
                      "TierClient::query()",
                      asked, rank, sequence.id)};
}

/// The worker that answers for the sequence.
[[nodiscard]] inline const std::string& home_address(const SequenceHandle& sequence) {
  return rank_address(sequence, sequence.home);
}
[[nodiscard]] inline Greeting greeting_of(const SequenceHandle& sequence) {
  return {.shape = sequence.shape, .sequence_id = sequence.id, .token = sequence.token};
}

/// What a message says of its call's deadline, 1 us at least.
[[nodiscard]] inline std::uint32_t microseconds_left(Deadline deadline, Time now) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline.when() - now);
  return static_cast<std::uint32_t>(
      std::clamp<std::int64_t>(left.count(), 1, std::numeric_limits<std::uint32_t>::max()));
}

/// Used by one thread. The destructor forgets unanswered requests: later replies are dropped, and
/// the caller's memory is not touched any more.
class WorkerCall {
 public:
  WorkerCall(WorkerConnections& connections, Deadline deadline)
      : connections_(connections), deadline_(deadline) {}
  ~WorkerCall() {
    connections_.release(requests_, deadline_);
    connections_.budget().give_back(reserved_);
  }
  WorkerCall(const WorkerCall&) = delete;
  WorkerCall& operator=(const WorkerCall&) = delete;

  /// As WorkerConnections::check().
  [[nodiscard]] Status check(const std::string& address, const SequenceHandle& sequence) {
    return connections_.check(address, sequence.id, sequence.token);
  }
  /// Numbers the message `header` and sends it with `message`. Returns the request's index; waits
  /// for nothing.
  template <wire::Message Header>
  std::size_t send(WorkerMessage message, Header header) {
    auto request = std::make_shared<WorkerRequest>();
    static_cast<WorkerMessage&>(*request) = std::move(message);
    request->number = header.request = connections_.next_number();
    request->type = Header::kType;
    request->header = wire::encode(header);
    request->reserved = std::exchange(reserved_, 0);
    request->call = call_;
    requests_.push_back(request);
    connections_.send(request);
    return requests_.size() - 1;
  }
  /// Waits until the bytes in flight of all calls leave room for `bytes` more. They are given back
  /// when the next request that is sent has ended. Returns false at the deadline.
  [[nodiscard]] bool reserve(std::size_t bytes) {
    constexpr std::chrono::milliseconds kPoll{20};
    const Clock& clock = connections_.clock();
    Time look = clock.now() + RequestTable::kSilence;
    while (!connections_.budget().take(bytes,
                                       Deadline(std::min(deadline_.when(), clock.now() + kPoll)))) {
      if (deadline_.expired(clock.now())) return false;
      connections_.look_after(look);
    }
    reserved_ += bytes;
    return true;
  }

  /// Waits for one reply or for any failure of this request; never throws. A deadline that passes
  /// is kDeadlineExceeded.
  Status wait(std::size_t index) { return connections_.wait(*requests_[index], deadline_); }
  /// Call it after wait() returned ok.
  [[nodiscard]] const WorkerReply& reply(std::size_t index) { return requests_[index]->reply; }
  /// Whether it was sent more than once. Call it after wait().
  [[nodiscard]] bool repeated(std::size_t index) const { return requests_[index]->repeats > 0; }
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
