// Control requests of clients that wait for the leader's verdict: the sender of each, and the items
// that this home has refused.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "comm/transport/transport.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/protocol/worker_messages.h"
#include "deploy/service/worker/home/peers.h"

namespace tributary {

/// Any thread may call any function.
class Relays {
 public:
  explicit Relays(Peers& peers) : peers_(peers) {}

  /// `reply` has one verdict per item; the leader decides the items that are ok here, in order.
  /// Returns the ticket of the relay, or 0 if too many wait; the client was then told.
  [[nodiscard]] std::uint64_t open(PeerId peer, wire::ControlReply reply);
  /// Answers the client; unknown tickets are ignored.
  void answer(const wire::ControlRelayReply& verdicts);

 private:
  /// A client has few at a time.
  static constexpr std::size_t kMost = 16'384;
  struct Waiting {
    PeerId peer = 0;
    wire::ControlReply reply;
  };

  void finish(Waiting asked, const wire::ControlRelayReply& verdicts);

  Peers& peers_;
  std::mutex mutex_;                                    // guards what follows
  std::unordered_map<std::uint64_t, Waiting> waiting_;  // by ticket
  std::uint64_t last_ticket_ = 0;
};

}  // namespace tributary
