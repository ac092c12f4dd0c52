// The bytes of the data plane's messages, version 1: what a client and a worker say to each other,
// and what the workers of a pool say among themselves. Little-endian, see messages.cc. Every
// decoder throws kMalformedInput for anything else than what its encoder writes.
//
// Dimensions in the comments: H heads, C kv_lora_rank, R qk_rope_head_dim, V v_head_dim.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace tributary::wire {

inline constexpr std::uint32_t kMagic = 0x42495254;  // "TRIB"
inline constexpr std::uint16_t kVersion = 1;
/// No encoded message is longer (active messages of UCX over TCP carry headers of up to 8 KB).
inline constexpr std::size_t kMaxHeaderBytes = 4096;

/// TransportHandler's `type`.
enum class MessageType : std::uint16_t {
  // client -> worker, and the worker's answer
  kHello = 1,
  kWelcome = 2,
  kRows = 3,  // payload: rows [count, C + R] in the pool's row type
  kRowsReply = 4,
  kRound = 5,       // payload: see RoundMode
  kRoundReply = 6,  // payload: see RoundMode, of the items that succeeded, in order
  kControl = 7,
  kControlReply = 8,
  // worker -> leader (rank 0) of the same pool, and back
  kJoin = 32,          // first message of a worker on its connection to the leader
  kWake = 33,          // leader: an order follows on the communicator; no header
  kItems = 34,         // home: these items have their payload and can run
  kItemsRefused = 35,  // leader: these will not
  kForward = 36,       // home: a client's Control
  kForwardReply = 37,
  kProgress = 38,  // owner: rows have arrived
  kBeat = 39,      // every worker, twice a second: alive, and its counters
};

/// 128 bits; see access_token.h.
using Token = std::array<std::uint8_t, 16>;

/// What both sides must agree on before any number travels. Equality is exact.
struct Shape {
  std::int32_t heads = 0;
  std::int32_t kv_lora_rank = 0;
  std::int32_t qk_rope_head_dim = 0;
  std::int32_t v_head_dim = 0;   // 0: the pool has no weights, see RoundMode
  std::int32_t hidden_size = 0;  // 0 likewise
  std::int32_t layers = 0;
  std::int32_t leaf_tokens = 0;
  std::uint8_t row_dtype = 0;    // DType
  std::uint8_t query_dtype = 0;  // DType
  float softmax_scale = 0;

  friend bool operator==(const Shape&, const Shape&) = default;
};

/// First message of a client on a connection; nothing else is answered before it.
struct Hello {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  Shape shape;
  std::uint64_t sequence_id = 0;  // any sequence that the client was admitted with, and its token
  Token token{};
};

/// Outcome of one thing; `code` is ErrorCode.
struct Outcome {
  ErrorCode code = ErrorCode::kOk;
  std::string message;  // at most kMaxText bytes; longer ones are cut when encoded

  [[nodiscard]] bool ok() const noexcept { return code == ErrorCode::kOk; }
  friend bool operator==(const Outcome&, const Outcome&) = default;
};
inline constexpr std::size_t kMaxText = 512;

/// Answer to Hello. A refused client is disconnected after it.
struct Welcome {
  std::uint16_t version = kVersion;
  Outcome outcome;
  std::int32_t rank = 0;
  Shape shape;  // the pool's
};

/// Latent rows of positions begin .. begin + count - 1 of one layer, all on the worker that gets
/// them.
struct Rows {
  std::uint64_t request = 0;  // the sender's number, comes back in the reply
  std::uint64_t sequence_id = 0;
  std::uint32_t epoch = 0;
  Token token{};
  std::int32_t layer = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::uint32_t crc32c = 0;  // of the payload
};
struct RowsReply {
  std::uint64_t request = 0;
  Outcome outcome;
};

/// What a round's payload holds, per token of each item in order, without gaps:
///   kAttend           in: query [H, C + R] (query type), new latent row [C + R] (row type)
///                     out: o [H, C] fp32, then lse [H] fp32
///   kAttendProjected  in: as kAttend; out: [H, V] fp32, after W_UV; needs weights
///   kForward          in: hidden states [hidden_size] fp32; out: [hidden_size] fp32, after o_proj;
///                     needs weights
enum class RoundMode : std::uint8_t { kAttend = 0, kAttendProjected = 1, kForward = 2 };

/// One sequence's new tokens at one layer.
struct RoundItem {
  std::uint64_t sequence_id = 0;
  std::uint32_t epoch = 0;
  Token token{};
  /// Length of the sequence before this step, as the client counts. The step of `tokens` tokens at
  /// this position is opened by its first item. If an earlier step is still open, it is committed
  /// up to here when base_length lies within it; a step that is sent again has accepted nothing.
  std::int64_t base_length = 0;
  std::int32_t tokens = 0;  // 1 .. kMaxStepTokens
  std::int32_t layer = 0;
};
/// Of any list in a message, so that a header stays below kMaxHeaderBytes; larger batches take
/// several messages.
inline constexpr std::size_t kMaxItems = 64;

/// To the home of all its items.
struct Round {
  std::uint64_t request = 0;
  std::uint32_t deadline_us = 0;  // from its arrival; items that have not run by then are refused
  RoundMode mode = RoundMode::kAttend;
  std::int32_t head_begin = 0;  // heads [head_begin, head_end); now always all of them
  std::int32_t head_end = 0;
  std::uint32_t crc32c = 0;  // of the payload
  std::vector<RoundItem> items;
};
struct RoundReply {
  std::uint64_t request = 0;
  std::uint32_t crc32c = 0;
  std::vector<ErrorCode> items;  // as many as the round had
  std::string message;           // about the first that failed; at most kMaxText bytes
};

enum class ControlOp : std::uint8_t {
  kCommit = 0,    // the open step ends with this length (its base: nothing accepted)
  kTruncate = 1,  // drops the rows from `length` on; a new epoch
  kRenew = 2,     // the lease; `length` is ignored
};
struct ControlItem {
  ControlOp op = ControlOp::kCommit;
  std::uint64_t sequence_id = 0;
  std::uint32_t epoch = 0;
  Token token{};
  std::int64_t length = 0;
};
/// To the home of all its items.
struct Control {
  std::uint64_t request = 0;
  std::vector<ControlItem> items;
};
struct ControlReply {
  struct Item {
    ErrorCode code = ErrorCode::kOk;
    std::uint32_t epoch = 0;  // of the sequence afterwards
    std::int64_t length = 0;
  };
  std::uint64_t request = 0;
  std::vector<Item> items;
  std::string message;  // about the first that failed
};

// Inside a pool.

struct Join {
  std::int32_t rank = 0;
  Token pool_key{};  // known to the ranks of the pool alone
};
/// `ticket` is the home's number of a Round; the leader answers with it and the item's index.
struct Items {
  std::uint64_t ticket = 0;
  std::uint32_t deadline_us = 0;
  std::vector<RoundItem> items;  // tokens (Token) are checked by the home
};
struct ItemsRefused {
  std::uint64_t ticket = 0;
  std::vector<std::uint32_t> items;  // indices into Items::items
  Outcome outcome;                   // of all of them
};
struct Forward {
  std::uint64_t ticket = 0;
  std::vector<ControlItem> items;
};
struct ForwardReply {
  std::uint64_t ticket = 0;
  std::vector<ControlReply::Item> items;
  std::string message;
};
/// Rows of a sequence's prompt on one owner, over all layers.
struct Progress {
  std::int32_t rank = 0;
  std::uint64_t sequence_id = 0;
  std::uint32_t epoch = 0;
  std::int64_t rows_done = 0;
  std::int64_t rows_total = 0;
  std::int32_t missing_layer = -1;  // the first row that has not come; -1: complete
  std::int64_t missing_position = -1;
};
/// Rows that were refused, by reason; see kRefusals.
enum class Refusal : std::uint8_t {
  kMalformed,
  kUnauthorized,
  kUnknownSequence,
  kStaleEpoch,
  kOutOfRange,
  kRepeated,
  kCorrupt,
  kAborted,  // the sender went away, or the sequence ended, during the transfer
};
inline constexpr std::size_t kRefusals = 8;
/// `malformed`, `unauthorized`, `unknown_sequence`, `stale_epoch`, ...
[[nodiscard]] std::string_view refusal_name(Refusal refusal) noexcept;

/// Totals since the worker's start.
struct Beat {
  std::int32_t rank = 0;
  std::uint64_t ingested_rows = 0;
  std::uint64_t ingested_bytes = 0;
  std::array<std::uint64_t, kRefusals> refused{};
  std::uint64_t connections = 0;                 // now open
  std::vector<std::uint64_t> ingest_us_buckets;  // core/metrics Histogram::counts
  double ingest_us_sum = 0;
};

// encode(x) and decode_x(bytes) of every header above.
#define TRIBUTARY_WIRE_MESSAGE(Type, name)                        \
  [[nodiscard]] std::vector<std::byte> encode(const Type& value); \
  [[nodiscard]] Type decode_##name(std::span<const std::byte> bytes)
TRIBUTARY_WIRE_MESSAGE(Hello, hello);
TRIBUTARY_WIRE_MESSAGE(Welcome, welcome);
TRIBUTARY_WIRE_MESSAGE(Rows, rows);
TRIBUTARY_WIRE_MESSAGE(RowsReply, rows_reply);
TRIBUTARY_WIRE_MESSAGE(Round, round);
TRIBUTARY_WIRE_MESSAGE(RoundReply, round_reply);
TRIBUTARY_WIRE_MESSAGE(Control, control);
TRIBUTARY_WIRE_MESSAGE(ControlReply, control_reply);
TRIBUTARY_WIRE_MESSAGE(Join, join);
TRIBUTARY_WIRE_MESSAGE(Items, items);
TRIBUTARY_WIRE_MESSAGE(ItemsRefused, items_refused);
TRIBUTARY_WIRE_MESSAGE(Forward, forward);
TRIBUTARY_WIRE_MESSAGE(ForwardReply, forward_reply);
TRIBUTARY_WIRE_MESSAGE(Progress, progress);
TRIBUTARY_WIRE_MESSAGE(Beat, beat);
#undef TRIBUTARY_WIRE_MESSAGE

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of the bytes, continued from `crc` of those before.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace tributary::wire
