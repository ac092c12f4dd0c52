// Messages between processes that come and go: a small header, and bulk bytes that land where the
// receiver says. Implementations: comm/local (one process), comm/ucx (TCP, RDMA).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"

namespace tributary {

/// One connection of one transport; never reused by it.
using PeerId = std::uint64_t;

/// Where a message's payload goes.
struct Landing {
  /// Written in order; their sizes add up to the payload's. Untouched by others until `done`.
  std::vector<std::span<std::byte>> pieces;
  /// Called once, on the transport's thread: the payload is there, or the peer is gone and the
  /// bytes are undefined. Never called from inside on_message.
  std::function<void(const Status&)> done;
  /// Called before `done`, on the transport's thread, with the payload's bytes in order and in
  /// parts that are in the processor's cache, for a checksum; valid during the call. May be empty;
  /// must not throw.
  std::function<void(std::span<const std::byte>)> inspect = {};
};

/// Called on the transport's own thread, one call at a time; must not block and must not throw.
class TransportHandler {
 public:
  virtual ~TransportHandler() = default;

  /// A message has come; `header` is valid during the call. With a payload the handler says where
  /// it goes; no value drops it. Without one (payload_bytes == 0) the value is ignored.
  virtual std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                            std::span<const std::byte> header,
                                            std::size_t payload_bytes) = 0;

  /// The connection has ended: closed by the other side, failed, or refused by a limit. Every
  /// `done` and `sent` of this peer has been called before. Not called after our own disconnect().
  virtual void on_disconnect(PeerId peer, const Status& reason) = 0;
};

struct OutgoingMessage {
  std::uint16_t type = 0;
  std::vector<std::byte> header;       // at most TransportConfig::max_header_bytes
  std::span<const std::byte> payload;  // stays valid and untouched until `sent`
  /// Called once, on the transport's thread: ok when the payload may be reused, which does not mean
  /// that it was received. May be empty.
  std::function<void(const Status&)> sent;
};

struct TransportConfig {
  std::string listen;      // "ADDRESS:PORT", port 0 for any; empty: only connects, accepts nobody
  bool busy_poll = false;  // spin instead of sleeping while idle
  bool shared_memory =
      false;  // see comm/ucx: faster inside a machine, a killed sender is not noticed
  std::size_t max_header_bytes = 4096;
  std::size_t max_payload_bytes = std::size_t{1} << 30;
  int max_connections = 1024;  // accepted ones
  /// A peer with more than this queued towards it, or one message older than send_timeout, does not
  /// read: it is disconnected.
  std::size_t max_outgoing_bytes = std::size_t{1} << 30;
  std::chrono::milliseconds send_timeout{10'000};
  std::chrono::milliseconds connect_timeout{5'000};
};

/// All calls may come from any thread, the handler's included. Destruction closes every connection,
/// calls what `done` and `sent` are still due (not ok), and no handler after that.
///
/// Messages of one connection arrive in the order of send() where they have no payload; one with a
/// payload may be overtaken.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  /// `local`, `ucx`.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// "ADDRESS:PORT" as bound, or empty.
  [[nodiscard]] virtual const std::string& address() const noexcept = 0;

  /// Returns at once; messages may be sent at once. A failure comes as on_disconnect, within
  /// connect_timeout. Throws kInvalidArgument for an address that is none.
  [[nodiscard]] virtual PeerId connect(const std::string& address) = 0;
  /// To an unknown or gone peer: `sent` gets kNotFound, nothing else happens.
  virtual void send(PeerId peer, OutgoingMessage message) = 0;
  /// What was sent to the peer before still goes out, for a second; what it sends is dropped, and
  /// every `done` of it called, not ok.
  virtual void disconnect(PeerId peer) = 0;
};

}  // namespace tributary
