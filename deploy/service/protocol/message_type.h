// The tags of the data plane's messages, and the limits that a client and a worker share. Every
// message type knows its tag (kType) and lists its fields (comm/wire/codec.h).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tributary::wire {

inline constexpr std::uint32_t kMagic = 0x42495254;  // "TRIB"
inline constexpr std::uint16_t kVersion = 15;
/// The bound on an encoded message (active messages of UCX over TCP carry headers of up to 8 KB).
inline constexpr std::size_t kMaxHeaderBytes = 4096;

/// The `type` of TransportHandler.
enum class MessageType : std::uint16_t {
  // client -> worker, and the worker's answer: client_messages.h
  kHello = 1,
  kWelcome = 2,
  kRows = 3,  // payload: rows [count, C + R] in the pool's row type
  kRowsReply = 4,
  kLayerRequest = 5,  // payload: see LayerMode
  kLayerReply = 6,    // payload: see LayerMode, of the items that succeeded, in order
  kControl = 7,
  kControlReply = 8,
  kProve = 9,     // client: these sequences are mine too
  kNotUsed = 10,  // worker: no sequence of this connection is here any more
  kProveReply = 11,
  kPull = 12,
  kPullReply = 13,  // payload: rows [count, C + R], as they are stored
  // worker -> leader (rank 0) of the same pool, and back: worker_messages.h
  kJoin = 32,          // first message of a worker on its connection to the leader
  kPoolOrder = 33,     // leader; payload: an order (core/sequencer/order.h)
  kItems = 34,         // home: these items have their payload and can run
  kItemsRefused = 35,  // leader: these will not
  kControlRelay = 36,  // home: a client's Control
  kControlRelayReply = 37,
  kProgress = 38,     // owner: rows have arrived
  kBeat = 39,         // every worker, twice a second: alive, and its counters
  kOrderWanted = 40,  // owner: a client knows of changes that no order has brought here yet
  kLeaving = 41,      // a worker is to end: what it holds goes to the others first
  kWaitedFor = 43,    // a worker, after a failed collective
  kLeft = 42,         // leader: the pool goes on without the worker
};

template <typename T>
concept Message = requires {
  { T::kType } -> std::convertible_to<MessageType>;
};

}  // namespace tributary::wire
