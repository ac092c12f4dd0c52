// Messages between processes that may come and go: a small header, and a payload that arrives in
// memory of the receiver's choice. Implementations: comm/local (one process), comm/tcp, comm/ucx
// (RDMA, shared memory, TCP).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary {

/// A connection of one transport, which never reuses the id.
using PeerId = std::uint64_t;

/// A value that only the two ends of a connection know. It is never sent.
using Secret = std::array<std::uint8_t, 16>;

/// The identity of the side that connects. The accepting side finds the secret by the id
/// (TransportConfig::secret_of), and each side proves to the other that it knows it before anything
/// else is read or sent.
struct Introduction {
  std::uint64_t id = 0;
  Secret secret{};
};

/// A value of one connection that both its ends know, and no other connection has. A keyed hash
/// over it proves a further secret on that connection (further_proof() in comm/transport/proof.h).
using Session = std::array<std::uint8_t, 32>;

/// The identity that the connecting side has proven, and the connection's session.
struct Proven {
  std::uint64_t id = 0;
  Session session{};
};

/// A limit of a transport that has cost somebody his connection, or his place in it.
enum class TransportLimit : std::uint8_t {
  kStrangers,  // one that had not proven himself made room
  kPlaces,     // a proven one was refused, or made room: he was silent, or had the most
  kUnread,     // reading has stopped: too many answers wait to be read
};

/// The place where a message's payload goes.
struct Landing {
  /// Filled in order; their sizes add up to the payload's. Nobody else uses them until `done`.
  std::vector<std::span<std::byte>> pieces;
  /// Called once, on the transport's thread: the payload has arrived, or the peer is gone and the
  /// bytes are undefined. Never called from inside on_message.
  std::function<void(const Status&)> done;
  /// For a checksum: called before `done`, on the transport's thread, with the payload's bytes in
  /// order, in parts that are in the processor's cache. They are valid during the call. May be
  /// empty; must not throw.
  std::function<void(std::span<const std::byte>)> inspect = {};
};

/// Called on the transport's thread, one call at a time: its own, or one that does its work
/// (Transport::work_until). Must neither block nor throw.
class TransportHandler {
 public:
  virtual ~TransportHandler() = default;

  /// Both sides have proven themselves; called on either side, before its first message.
  virtual void on_open(PeerId /*peer*/, const Proven& /*who*/) {}

  /// A message has arrived; `header` is valid during the call. The handler returns where the
  /// payload goes, or no value to drop it. Without a payload (payload_bytes == 0) the value is
  /// ignored.
  virtual std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                            std::span<const std::byte> header,
                                            std::size_t payload_bytes) = 0;

  /// The connection has ended: the peer closed it, it failed, or it exceeded a limit. Every `done`
  /// of this peer has been called before, and each `sent` but one that send() calls just now.
  /// Called once for every peer of our own connect() and of on_open(), but not after our own
  /// disconnect().
  virtual void on_disconnect(PeerId peer, const Status& reason) = 0;

  /// The listening socket has failed for good, and nobody can connect any more. By default this
  /// ends the process with an uncaught exception: a worker that nobody can reach must not look
  /// healthy.
  virtual void on_listener_failed(const Status& reason) { reason.throw_if_error(); }

  /// Accepting has stopped for lack of descriptors or memory; clients that connect wait. Called
  /// once until somebody is accepted again.
  virtual void on_accepting_paused(const Status& /*reason*/) {}

  /// A limit has taken effect on an accepted connection.
  virtual void on_limit(TransportLimit /*limit*/, const Status& /*what*/) {}
};

struct OutgoingMessage {
  std::uint16_t type = 0;
  std::vector<std::byte> header;  // at most TransportConfig::max_header_bytes
  /// One payload, in order; the bytes stay valid and untouched until `sent`.
  std::vector<std::span<const std::byte>> payload;
  /// Called once, on the transport's thread or, with ok, inside send(). Ok: the payload may be
  /// reused, which does not mean that it was received. May be empty.
  std::function<void(const Status&)> sent;

  [[nodiscard]] std::size_t payload_bytes() const noexcept {
    std::size_t bytes = 0;
    for (const std::span<const std::byte> piece : payload) bytes += piece.size();
    return bytes;
  }
};

/// Appends to an outgoing payload. Memory that directly follows the last piece extends that piece.
inline void append_piece(std::vector<std::span<const std::byte>>& payload,
                         std::span<const std::byte> piece) {
  if (!payload.empty() && payload.back().data() + payload.back().size() == piece.data()) {
    payload.back() = {payload.back().data(), payload.back().size() + piece.size()};
  } else {
    payload.push_back(piece);
  }
}

/// PEM files. Only comm/tcp encrypts: comm/local does not need to, and comm/ucx refuses it.
struct TransportTls {
  std::string certificate, key;  // our own; required to listen
  /// The authority that signs the certificates of peers that we connect to. Empty: the system's.
  std::string authority;
  /// The authority that signs the certificates of peers that connect to us. Empty: they need none.
  std::string client_authority;
};

struct TransportConfig {
  std::string listen = {};  // "ADDRESS:PORT", port 0 for any; empty: accepts no connections
  bool busy_poll = false;   // spin instead of sleeping while idle
  bool shared_memory =
      false;  // see comm/ucx: faster inside a machine, but a killed sender is not noticed
  std::size_t max_header_bytes = 4096;
  std::size_t max_payload_bytes = std::size_t{1} << 30;
  /// Accepted connections that have proven an id. If all are taken, the oldest one that has not
  /// sent anything is closed; if there is none, one of the id that has the most, if it keeps more
  /// than the newcomer's id gets; else the new one is refused.
  int max_connections = 1024;
  /// The share of one id in max_connections; if it is taken, the id's oldest silent one is closed,
  /// or the new one is refused. Id 0 has no bound of its own.
  int max_connections_of_id = 64;
  /// Accepted connections that have proven nothing yet, which takes an honest one two round trips;
  /// the oldest makes room. An address (of IPv6 its first 64 bits) has an eighth of them.
  int max_strangers = 4096;
  /// While more bytes wait to be read by an accepted peer, nothing more is read from it: comm/ucx
  /// does not fetch its payloads, and comm/local, whose peers are in the same process, reads on.
  std::size_t max_unread_bytes = std::size_t{16} << 20;
  /// A peer with more bytes queued, or with a message older than send_timeout, does not read and is
  /// disconnected.
  std::size_t max_outgoing_bytes = std::size_t{1} << 30;
  std::chrono::milliseconds send_timeout{10'000};
  std::chrono::milliseconds connect_timeout{5'000};
  /// Gives the secret that belongs to an id, or no value, for accepted connections. Called on the
  /// transport's thread; must neither block nor throw. Empty: every secret is all zeros.
  std::function<std::optional<Secret>(std::uint64_t id)> secret_of = {};
  std::optional<TransportTls> tls = {};
};

/// Any thread may call, including the handler's. Destruction closes every connection and calls
/// every outstanding `done` and `sent` (not ok). The handler is not called after that.
///
/// Messages of one connection without a payload arrive in the order of send(). A message with a
/// payload may be overtaken by later ones.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  /// `local`, `tcp`, `ucx`.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// The bound address, "ADDRESS:PORT", or empty.
  [[nodiscard]] virtual const std::string& address() const noexcept = 0;

  /// Returns at once; messages may be sent at once. A failure is reported by on_disconnect within
  /// connect_timeout: kPermissionDenied if one side does not know the secret, kUnavailable if the
  /// other side does not answer, kPoolFull if it has no room. Throws kInvalidArgument for an
  /// invalid address.
  [[nodiscard]] virtual PeerId connect(const std::string& address,
                                       const Introduction& introduction) = 0;
  /// Connects to a peer that has no secrets.
  [[nodiscard]] PeerId connect(const std::string& address) { return connect(address, {}); }
  /// If the peer is unknown or gone, `sent` gets kNotFound and nothing else happens.
  virtual void send(PeerId peer, OutgoingMessage message) = 0;
  /// Earlier messages have one second to leave. Messages from the peer are dropped, and each of its
  /// outstanding `done` is called, not ok.
  virtual void disconnect(PeerId peer) = 0;

  /// For a thread that waits for a message: does the transport's work, the handler's calls among
  /// it, until `done()` or `until`; so no other thread has to wake for the message, nor wake this
  /// one. done() is asked after each piece of work, and after wake(); it must not throw. Returns
  /// false at once where others do the work: the thread is to wait for them.
  [[nodiscard]] virtual bool work_until(Time /*until*/, const std::function<bool()>& /*done*/) {
    return false;
  }
  /// Who is in work_until() asks done() again.
  virtual void wake() {}
};

/// Makes a transport that calls `handler`, which outlives it: make_tcp_transport, ...
using MakeTransport = std::function<std::unique_ptr<Transport>(const TransportConfig& config,
                                                               TransportHandler& handler)>;

}  // namespace tributary
