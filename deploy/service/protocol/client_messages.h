// The messages between a client and a worker on the data plane.
//
// Dimensions in the comments: H heads, C kv_lora_rank, R qk_rope_head_dim, N qk_nope_head_dim, V
// v_head_dim.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/transport/proof.h"
#include "core/base/error.h"
#include "core/model/pool_shape.h"
#include "core/plan/step_item.h"
#include "deploy/service/protocol/message_type.h"

namespace tributary::wire {

/// First message of a client on a connection, which the transport has opened with the proof of one
/// of its sequences; nothing else is answered before it.
struct Hello {
  static constexpr MessageType kType = MessageType::kHello;
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  PoolShape shape;  // that the client was told
  static void fields(auto& archive, auto& m) { archive(m.magic, m.version, m.shape); }
};

/// Further sequences that the connection serves, before their first message on it. Tokens are not
/// sent: each is proven by a keyed hash over the connection's session. What names a sequence that
/// was not proven is refused. A wrong proof takes nothing from what was proven before.
struct Prove {
  static constexpr MessageType kType = MessageType::kProve;
  struct Item {
    /// As many as a header carries.
    static constexpr std::size_t kMost = (kMaxHeaderBytes - sizeof(std::uint16_t)) / 20;
    std::uint64_t sequence_id = 0;
    proof::FurtherProof proof{};
    static void fields(auto& archive, auto& m) { archive(m.sequence_id, m.proof); }
  };
  std::vector<Item> items;
  static void fields(auto& archive, auto& m) { archive(m.items); }
};

/// One answer to each Prove, in their order.
struct ProveReply {
  static constexpr MessageType kType = MessageType::kProveReply;
  struct Item {
    static constexpr std::size_t kMost = Prove::Item::kMost;
    ErrorCode code = ErrorCode::kPermissionDenied;  // or kOk
    static void fields(auto& archive, auto& m) { archive(m.code); }
  };
  std::vector<Item> items;
  static void fields(auto& archive, auto& m) { archive(m.items); }
};

/// A client that has nothing to ask on the connection closes it; otherwise the worker does soon, if
/// no further sequence is proven.
struct NotUsed {
  static constexpr MessageType kType = MessageType::kNotUsed;
  static void fields(auto& /*archive*/, auto& /*m*/) {}
};

/// The outcome of one item.
struct Outcome {
  ErrorCode code = ErrorCode::kOk;
  std::string message;  // at most wire::kMaxText bytes travel

  [[nodiscard]] bool ok() const noexcept { return code == ErrorCode::kOk; }
  friend bool operator==(const Outcome&, const Outcome&) = default;
  static void fields(auto& archive, auto& m) { archive(m.code, m.message); }
};

/// Answer to Hello. A refused client is disconnected after it.
struct Welcome {
  static constexpr MessageType kType = MessageType::kWelcome;
  std::uint16_t version = kVersion;
  Outcome outcome;
  std::int32_t rank = 0;
  PoolShape shape;  // the pool's
  static void fields(auto& archive, auto& m) { archive(m.version, m.outcome, m.rank, m.shape); }
};

/// Latent rows of positions begin .. begin + count - 1 of one layer, all on the worker that
/// receives them.
struct Rows {
  static constexpr MessageType kType = MessageType::kRows;
  std::uint64_t request = 0;  // the sender's number, comes back in the reply
  std::uint64_t sequence_id = 0;
  std::uint32_t epoch = 0;
  std::int32_t layer = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::uint32_t crc32c = 0;  // of the payload
  static void fields(auto& archive, auto& m) {
    archive(m.request, m.sequence_id, m.epoch, m.layer, m.begin, m.count, m.crc32c);
  }
};
struct RowsReply {
  static constexpr MessageType kType = MessageType::kRowsReply;
  std::uint64_t request = 0;
  Outcome outcome;
  static void fields(auto& archive, auto& m) { archive(m.request, m.outcome); }
};

/// Asks for rows begin .. begin + count - 1 of one layer, which have arrived or were committed.
struct Pull {
  static constexpr MessageType kType = MessageType::kPull;
  std::uint64_t request = 0;
  std::uint64_t sequence_id = 0;
  std::uint32_t epoch = 0;
  std::uint32_t deadline_us = 0;  // from its arrival; rows that have not been read by then are not
  std::int32_t layer = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  static void fields(auto& archive, auto& m) {
    archive(m.request, m.sequence_id, m.epoch, m.deadline_us, m.layer, m.begin, m.count);
  }
};
/// Brings the first `count` of the rows: those that lie on this worker.
struct PullReply {
  static constexpr MessageType kType = MessageType::kPullReply;
  std::uint64_t request = 0;
  Outcome outcome;
  std::uint32_t crc32c = 0;  // of the payload
  std::int64_t count = 0;    // 0 where it failed
  std::int32_t owner = -1;   // who has the next of the rows; -1 where these are all
  static void fields(auto& archive, auto& m) {
    archive(m.request, m.outcome, m.crc32c, m.count, m.owner);
  }
};

/// The mode decides the payload of a request, per token of each item in order, without gaps:
///   kAttend            in: query [H, C + R] (query type), new latent row [C + R] (row type)
///                      out: o [H, C] fp32, then lse [H] fp32
///   kAttendProjected   in: as kAttend; out: [H, V] fp32, after W_UV; needs W_UV
///   kForward           in: hidden states [hidden_size] fp32; out: [hidden_size] fp32, after
///                      o_proj; needs a model's weights
///   kAttendUnabsorbed  in: query [H, N + R] (query type), before W_UK, and row as kAttend
///                      out: [H, V] fp32, after W_UV, then lse [H] fp32; needs W_UK and W_UV
enum class LayerMode : std::uint8_t {
  kAttend = 0,
  kAttendProjected = 1,
  kForward = 2,
  kAttendUnabsorbed = 3,
  kLast = kAttendUnabsorbed
};

/// The client's call that a message belongs to. A call to several homes of a pool runs in one
/// round, if its messages come in time.
struct CallPart {
  std::uint64_t call = 0;      // its number; no other call of any client has it
  std::uint16_t messages = 1;  // of the call, to all homes of the pool
  static void fields(auto& archive, auto& m) { archive(m.call, m.messages); }
};
/// Sent to the home of all its items. The step of `tokens` tokens at an item's base_length, by the
/// client's count, is opened by its first item. If an earlier step is still open, it is committed
/// up to there if base_length lies within it; a step that is sent again has accepted nothing.
struct LayerRequest {
  static constexpr MessageType kType = MessageType::kLayerRequest;
  std::uint64_t request = 0;
  std::uint32_t deadline_us = 0;  // from its arrival; items that have not run by then are refused
  LayerMode mode = LayerMode::kAttend;
  std::uint32_t crc32c = 0;  // of the payload
  CallPart part;
  std::vector<StepItem> items;
  static void fields(auto& archive, auto& m) {
    archive(m.request, m.deadline_us, m.mode, m.crc32c, m.part, m.items);
  }
};
struct LayerReply {
  static constexpr MessageType kType = MessageType::kLayerReply;
  /// An item that failed because another worker is the home of its sequence now.
  struct Moved {
    std::uint32_t item = 0;
    std::int32_t home = 0;
    static void fields(auto& archive, auto& m) { archive(m.item, m.home); }
  };
  std::uint64_t request = 0;
  std::uint32_t crc32c = 0;
  std::vector<ErrorCode> items;  // as many as the request had
  std::string message;           // about the first failure; at most wire::kMaxText bytes travel
  std::vector<Moved> moved = {};
  static void fields(auto& archive, auto& m) {
    archive(m.request, m.crc32c, m.items, m.message, m.moved);
  }
};

enum class ControlOp : std::uint8_t {
  kCommit = 0,    // the open step ends with this length (its base: nothing accepted)
  kTruncate = 1,  // drops the rows from `length` on; a new epoch
  kRenew = 2,     // the lease; `length` is ignored
  kReady = 3,     // kUnavailable while rows of the prompt are missing; `length` is ignored
  kExtend = 4,    // room for `length` tokens in all, the prompt's included
  kFree = 5,      // ends the sequence; `length` is ignored
  kName = 6,      // committed blocks get names; `length`: the number of the first one
  kLast = kName,
};
/// Of blocks of a sequence, one after the other: see Prefix.
struct BlockNames {
  struct Key {
    static constexpr std::size_t kMost = 1024;
    std::string bytes;
    static void fields(auto& archive, auto& m) { archive(m.bytes); }
  };
  std::int32_t block_tokens = 0;
  std::string cache_salt;
  std::vector<Key> keys;
  static void fields(auto& archive, auto& m) { archive(m.block_tokens, m.cache_salt, m.keys); }
};
struct ControlItem {
  ControlOp op = ControlOp::kCommit;
  std::uint64_t sequence_id = 0;
  std::uint32_t epoch = 0;
  std::int64_t length = 0;
  BlockNames names = {};  // of kName
  static void fields(auto& archive, auto& m) {
    archive(m.op, m.sequence_id, m.epoch, m.length, m.names);
  }
};
/// Sent to the home of all its items; any worker of the pool passes it to the leader.
struct Control {
  static constexpr MessageType kType = MessageType::kControl;
  std::uint64_t request = 0;
  std::vector<ControlItem> items;
  static void fields(auto& archive, auto& m) { archive(m.request, m.items); }
};
struct ControlReply {
  static constexpr MessageType kType = MessageType::kControlReply;
  struct Item {
    ErrorCode code = ErrorCode::kOk;
    std::uint32_t epoch = 0;  // of the sequence afterwards
    std::int64_t length = 0;
    std::int32_t home = -1;  // of the sequence now; -1: unknown
    static void fields(auto& archive, auto& m) { archive(m.code, m.epoch, m.length, m.home); }
  };
  std::uint64_t request = 0;
  std::vector<Item> items;
  std::string message;  // about the first that failed
  static void fields(auto& archive, auto& m) { archive(m.request, m.items, m.message); }
};

}  // namespace tributary::wire
