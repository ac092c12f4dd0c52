// A client's connections to workers, by address. They are made at the first message and shared by
// all calls. Used only inside deploy/service/client.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
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
#include <variant>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/wire/access_token.h"
#include "comm/wire/codec.h"
#include "core/base/deadline.h"
#include "core/base/error.h"
#include "deploy/service/client/byte_budget.h"
#include "deploy/service/client/proven_sequences.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary {

/// A worker's answer to one request.
using WorkerReply =
    std::variant<std::monostate, wire::RowsReply, wire::LayerReply, wire::ControlReply>;

/// A sequence as a connection serves it.
struct Greeting {
  PoolShape shape;
  std::uint64_t sequence_id = 0;
  wire::Token token{};
};

/// What travels with a message to a worker.
struct WorkerMessage {
  std::string address;
  /// The request's sequences, not empty. One opens the connection, where there is none: they are
  /// tried one after the other, from the last on, until the worker welcomes one, so that one that
  /// the worker does not know, of an earlier pool at its address, does not keep the others out. The
  /// others are proven on it.
  std::vector<Greeting> greetings;
  /// The caller's memory, like the places of landing(). It is not touched any more when the request
  /// has ended and `in_use` is 0.
  std::vector<std::span<const std::byte>> payload = {};
  /// Gives the places for the payload of a reply, in order; called while the request has not ended.
  /// Empty: the reply has no payload.
  std::function<std::vector<std::span<std::byte>>(const wire::LayerReply&)> landing = {};
  /// A connection that ends before the answer leaves open whether the worker has done it. Done
  /// again, it changes nothing: it is sent again.
  bool repeatable = true;
};

/// One request to one worker. Its call fills in the first part and then leaves it alone; the rest
/// belongs to the connections, under their mutex.
struct WorkerRequest : WorkerMessage {
  /// Shared by the requests of one call.
  struct Call {
    std::condition_variable changed;
    bool failed = false;  // some request of it, or refused
  };

  std::uint64_t number = 0;  // as in `header`
  wire::MessageType type{};
  std::vector<std::byte> header;
  std::size_t reserved = 0;  // bytes of the budget, given back at its end
  std::shared_ptr<Call> call;

  Time since;                   // when it was given to the connections
  PeerId peer = 0;              // since it was sent
  std::atomic<int> in_use = 0;  // by the transport: the payload, the reply's places
  int repeats = 0;              // how often it was sent again
  Status refusal;               // the last reason to wait and try again
  std::atomic<bool> done = false;
  Status status;
  WorkerReply reply;
};

/// A worker for whose answer, or for a connection to which, a request has waited for a long time.
struct SilentWorker {
  std::string address;
  Greeting greeting;  // of one sequence there
};

/// Tells whoever runs the client that it waits for a worker. Any thread; must not call the client.
using TellWaiting = std::function<void(const std::string& text)>;

class WorkerConnections final : private TransportHandler {
 public:
  /// `tell` is called once for every worker to which there has been no connection for kPatience
  /// while somebody waited for it. Empty: nobody is told.
  WorkerConnections(const TransportConfig& config, const MakeTransport& make_transport,
                    std::size_t max_in_flight_bytes, TellWaiting tell = {});
  ~WorkerConnections() override;
  WorkerConnections(const WorkerConnections&) = delete;
  WorkerConnections& operator=(const WorkerConnections&) = delete;

  /// A number that no other request has, nor one of another client.
  [[nodiscard]] std::uint64_t next_number() noexcept { return next_number_.fetch_add(1); }
  [[nodiscard]] ByteBudget& budget() noexcept { return budget_; }
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
  /// `silent` gets the workers that have not answered for kSilence, and those to which a
  /// connection has just failed, and again after each further kSilence, while somebody waits for
  /// them. It must neither block nor call back. Empty: nobody is told.
  void watch(std::function<void(std::vector<SilentWorker>)> silent);
  static constexpr std::chrono::milliseconds kSilence{500};
  static constexpr std::chrono::milliseconds kPatience{2'000};
  /// The last try to connect to the worker has failed.
  [[nodiscard]] bool unreachable(const std::string& address);
  /// Ends the connection, if there is one, and all that waits for the worker, with `reason`.
  void give_up(const std::string& address, const Status& reason);
  /// Ends the unfinished requests of one call; unsent ones are not sent any more. Waits until the
  /// transport no longer touches their memory; connections that hold on to it past the deadline are
  /// cut.
  void release(std::span<const std::shared_ptr<WorkerRequest>> requests, Deadline deadline);

 private:
  using Clock = std::chrono::steady_clock;
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
  /// An address between the first try to connect and the welcome.
  struct Absence {
    Clock::time_point since;
    Clock::time_point next_try{};
    int failures = 0;
    Status why;          // the last failure
    bool asked = false;  // whether the pool is lost, since the first failure
    bool told = false;
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
                             std::vector<std::span<std::byte>> pieces, wire::LayerReply reply);
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
  [[nodiscard]] std::vector<SilentWorker> silent_workers() const;
  /// The worker has rejected the greeting that opened the connection: its requests try others.
  void refused(PeerId peer, const Status& why);
  /// The connection has ended, but not the pool: its requests are sent again later.
  void interrupted(PeerId peer, const Status& reason);
  void send_later(const std::shared_ptr<WorkerRequest>& request, Clock::time_point when,
                  Status reason);
  void send_due();
  /// Whether the reply says that the request is to come again; then it will.
  bool try_again(const std::shared_ptr<WorkerRequest>& request, const WorkerReply& reply);
  /// The text for a worker that has been absent for a long time; empty where nothing is to be told.
  [[nodiscard]] std::string complaint(const std::string& address);
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

  std::atomic<std::uint64_t> next_number_;
  ByteBudget budget_;
  std::mutex mutex_;  // guards the fields below, up to the transport; held while that is called
  std::map<std::string, PeerId> peers_;  // those in connections_, but for replaced ones
  std::unordered_map<PeerId, Connection> connections_;
  std::unordered_map<std::uint64_t, std::shared_ptr<WorkerRequest>> pending_;  // by number
  std::vector<std::shared_ptr<WorkerRequest::Call>> ended_;  // of requests, since the last Section
  std::map<std::string, Absence> absent_;                    // by address
  /// Requests that are sent when their time has come, by whichever call waits.
  std::multimap<Clock::time_point, std::shared_ptr<WorkerRequest>> later_;
  TellWaiting tell_;
  std::function<void(std::vector<SilentWorker>)> silent_;
  Transport* transport_ = nullptr;    // also while the owner below destroys it: callbacks use it
  std::unique_ptr<Transport> owner_;  // last: its callbacks use the rest
};

}  // namespace tributary
