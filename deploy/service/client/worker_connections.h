// A client's connections to workers, by address. They are made at the first message and shared by
// all calls. Used only inside deploy/service/client.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/wire/codec.h"
#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/clock.h"
#include "deploy/service/client/byte_budget.h"
#include "deploy/service/client/proven_sequences.h"
#include "deploy/service/client/request_table.h"
#include "deploy/service/client/worker_request.h"

namespace tributary {

/// Tells whoever runs the client that it waits for a worker. Any thread; must not call the client.
using TellWaiting = std::function<void(const std::string& text)>;

/// Sends and receives. When something is sent again, who is silent and who is complained about is
/// RequestTable's affair, which messages may go out on a connection that of ProvenSequences.
class WorkerConnections final : private TransportHandler {
 public:
  /// `tell` is called once for every worker to which there has been no connection for
  /// WorkerAbsences::kPatience while somebody waited for it. Empty: nobody is told.
  WorkerConnections(const TransportConfig& config, const MakeTransport& make_transport,
                    std::size_t max_in_flight_bytes, Clock& clock, TellWaiting tell = {});
  ~WorkerConnections() override;
  WorkerConnections(const WorkerConnections&) = delete;
  WorkerConnections& operator=(const WorkerConnections&) = delete;

  /// A number that no other request has, nor one of another client.
  [[nodiscard]] std::uint64_t next_number() noexcept { return next_number_.fetch_add(1); }
  [[nodiscard]] ByteBudget& budget() noexcept { return budget_; }
  [[nodiscard]] Clock& clock() noexcept { return clock_; }
  /// For a call that waits for the budget, again and again: what has its room may be what is to be
  /// sent again. At `look`, which moves on, it asks about the workers that do not answer, as
  /// wait().
  void look_after(Time& look);

  /// Sends at once to a worker that has welcomed us, otherwise as soon as it does; returns at once.
  /// A worker that does not answer delays only its own messages. Any error, even here, is the
  /// request's status. A connection that ends, before the welcome or after it, says nothing about
  /// the pool: it is made again, and its requests wait, while their calls do.
  void send(const std::shared_ptr<WorkerRequest>& request);
  /// kPermissionDenied where the connection to the worker has proven the sequence with another
  /// token: a message with this one is not sent.
  [[nodiscard]] Status check(const std::string& address, std::uint64_t sequence_id,
                             const wire::Token& token);
  /// Waits for the request's end. A deadline that passes ends it with kDeadlineExceeded, or, where
  /// it was tried again and again, with the last reason; a later reply is dropped.
  [[nodiscard]] Status wait(WorkerRequest& request, Deadline deadline);
  [[nodiscard]] bool failed(const WorkerRequest::Call& call);
  [[nodiscard]] bool failed(const WorkerRequest& request);
  /// `silent` gets RequestTable::silent() when a request has waited for kSilence, or a connection
  /// has just failed, and again after each further kSilence, while somebody waits. It must neither
  /// block nor call back. Empty: nobody is told.
  void watch(std::function<void(std::vector<SilentWorker>)> silent);
  /// The last try to connect to the worker has failed.
  [[nodiscard]] bool unreachable(const std::string& address);
  /// Ends the connection, if there is one, and all that waits for the worker, with `reason`.
  void give_up(const std::string& address, const Status& reason);
  /// Ends what waits for the worker and is about these sequences alone.
  void give_up(const std::string& address, std::span<const std::uint64_t> sequence_ids,
               const Status& reason);
  /// Ends the unfinished requests of one call; unsent ones are not sent any more. Waits until the
  /// transport no longer touches their memory; connections that hold on to it past the deadline are
  /// cut.
  void release(std::span<const std::shared_ptr<WorkerRequest>> requests, Deadline deadline);

 private:
  struct Connection {
    std::string address;
    Greeting greeting;
    Session session{};
    ProvenSequences sequences = {};
    bool welcomed = false;
    bool replaced = false;  // by a newer one, with which it is not in peers_
    /// Until it is welcomed, or until the worker has judged another token of their sequences.
    std::vector<std::shared_ptr<WorkerRequest>> held;
  };
  /// Holds the mutex. Its end wakes the callers whose requests have ended, when the mutex is free:
  /// one that woke earlier would have to wait for it, and wake twice.
  class Section;

  void on_open(PeerId peer, const Proven& who) override;
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;
  std::optional<Landing> on_reply(PeerId peer, wire::MessageType type,
                                  std::span<const std::byte> header, std::size_t payload_bytes);

  // Call with the mutex held.
  [[nodiscard]] Landing land(const std::shared_ptr<WorkerRequest>& request,
                             std::vector<std::span<std::byte>> pieces, WorkerReply reply);
  void dispatch(const std::shared_ptr<WorkerRequest>& request);
  void open(const std::shared_ptr<WorkerRequest>& request);
  /// Sends requests, after the proofs of their sequences that are new to the connection.
  void transmit(std::span<const std::shared_ptr<WorkerRequest>> requests, PeerId peer);
  /// Whether the request may be sent now, after the proofs that are added to `further`. Otherwise
  /// it is held, or ended.
  [[nodiscard]] bool prove(const std::shared_ptr<WorkerRequest>& request, PeerId peer,
                           wire::Prove& further);
  void transmit(const std::shared_ptr<WorkerRequest>& request, PeerId peer);
  void not_used(PeerId peer);
  void welcomed(PeerId peer, const wire::Welcome& welcome);
  /// The worker has rejected the greeting that opened the connection: its requests try others.
  void refused(PeerId peer, const Status& why);
  /// The connection has ended, but not the pool: its requests are sent again later.
  void interrupted(PeerId peer, const Status& reason);
  void send_later(const std::shared_ptr<WorkerRequest>& request, Time when, Status reason);
  void send_due();
  /// Ends a request, once. Its caller wakes at the end of the Section, or with wake_ended().
  void finish(std::uint64_t number, Status status, WorkerReply reply = {});
  void wake_ended();
  template <wire::Message Message>
  void send(PeerId peer, const Message& message) {
    transport_->send(peer, {.type = static_cast<std::uint16_t>(Message::kType),
                            .header = wire::encode(message),
                            .payload = {},
                            .sent = {}});
  }
  /// Forgets the connection; no value where there is none.
  std::optional<Connection> take(PeerId peer);
  /// Ends the connection and all that waits on it.
  void drop(PeerId peer, const Status& reason);

  Clock& clock_;
  std::atomic<std::uint64_t> next_number_;
  ByteBudget budget_;
  std::mutex mutex_;  // guards the fields below, up to the transport; held while that is called
  std::map<std::string, PeerId> peers_;  // those in connections_, but for replaced ones
  std::unordered_map<PeerId, Connection> connections_;
  RequestTable requests_;
  std::vector<std::shared_ptr<WorkerRequest::Call>> ended_;  // of requests, since the last Section
  TellWaiting tell_;
  std::function<void(std::vector<SilentWorker>)> silent_;
  Transport* transport_ = nullptr;    // also while the owner below destroys it: callbacks use it
  std::unique_ptr<Transport> owner_;  // last: its callbacks use the rest
};

}  // namespace tributary
