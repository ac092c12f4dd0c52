// Control requests of clients that wait for the leader's verdict: the sender of each, and the items
// that this home has refused.
#pragma once

#include <cstddef>
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
  /// Returns the ticket of the relay, or 0 if too many wait, of all or of connections that opened
  /// with `key`; the client was then told.
  [[nodiscard]] std::uint64_t open(PeerId peer, std::uint64_t key, wire::ControlReply reply);
  /// Answers the client; unknown tickets are ignored.
  void answer(const wire::ControlRelayReply& verdicts);
  /// How many have found no room.
  [[nodiscard]] std::uint64_t refused() const;

  /// A client has few at a time.
  static constexpr std::size_t kMost = 16'384;
  static constexpr std::size_t kMostOfKey = 256;
  static constexpr std::size_t kMostItemsOfKey = 16'384;  // beside one control of any size

 private:
  struct Waiting {
    PeerId peer = 0;
    std::uint64_t key = 0;
    wire::ControlReply reply;
  };
  struct Share {
    std::size_t controls = 0;
    std::size_t items = 0;
  };

  void finish(Waiting asked, const wire::ControlRelayReply& verdicts);

  Peers& peers_;
  mutable std::mutex mutex_;                            // guards what follows
  std::unordered_map<std::uint64_t, Waiting> waiting_;  // by ticket
  std::unordered_map<std::uint64_t, Share> shares_;     // by key
  std::uint64_t refused_ = 0;
  std::uint64_t last_ticket_ = 0;
};

}  // namespace tributary
