// The messages between the workers of a pool on the data plane: homes and owners of rows to the
// leader, and the leader's answers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/protocol/message_type.h"

namespace tributary::wire {

/// The id that the workers of a pool prove to each other: no sequence has it. Its token, made with
/// the pool's key like any sequence's, is known to them alone.
inline constexpr std::uint64_t kPoolItself = 0;

struct Join {
  static constexpr MessageType kType = MessageType::kJoin;
  std::int32_t rank = 0;
  std::string host = {}, address = {}, backend = {};  // for clients: WorkerInfo
  std::int32_t threads = 0;
  static void fields(auto& archive, auto& m) {
    archive(m.rank, m.host, m.address, m.backend, m.threads);
  }
};
/// Payloads may be overtaken: the numbers give the order in which orders are carried out.
struct PoolOrder {
  static constexpr MessageType kType = MessageType::kPoolOrder;
  std::uint64_t number = 0;  // 1, 2, ...
  static void fields(auto& archive, auto& m) { archive(m.number); }
};
/// `ticket` is the home's number of a LayerRequest; the leader answers with it and the item's
/// index.
struct Items {
  static constexpr MessageType kType = MessageType::kItems;
  std::uint64_t ticket = 0;
  std::uint32_t deadline_us = 0;
  CallPart part;
  std::vector<StepItem> items;  // of the LayerRequest; one that the home has refused: no tokens
  static void fields(auto& archive, auto& m) { archive(m.ticket, m.deadline_us, m.part, m.items); }
};
struct ItemsRefused {
  static constexpr MessageType kType = MessageType::kItemsRefused;
  std::uint64_t ticket = 0;
  std::vector<std::uint32_t> items;  // indices in the LayerRequest
  Outcome outcome;                   // of all of them
  std::int32_t home = -1;            // who their sequences' home is now; -1: that is not the reason
  static void fields(auto& archive, auto& m) { archive(m.ticket, m.items, m.outcome, m.home); }
};
struct ControlRelay {
  static constexpr MessageType kType = MessageType::kControlRelay;
  std::uint64_t ticket = 0;
  std::vector<ControlItem> items;
  static void fields(auto& archive, auto& m) { archive(m.ticket, m.items); }
};
struct ControlRelayReply {
  static constexpr MessageType kType = MessageType::kControlRelayReply;
  std::uint64_t ticket = 0;
  std::vector<ControlReply::Item> items;
  std::string message;
  static void fields(auto& archive, auto& m) { archive(m.ticket, m.items, m.message); }
};
/// Rows of a sequence's prompt on one owner, over all layers.
struct Progress {
  static constexpr MessageType kType = MessageType::kProgress;
  std::int32_t rank = 0;
  std::uint64_t sequence_id = 0;
  std::uint32_t epoch = 0;
  std::int64_t rows_done = 0;
  std::int64_t rows_total = 0;
  std::int32_t missing_layer = -1;  // the first missing row; -1: complete
  std::int64_t missing_position = -1;
  static void fields(auto& archive, auto& m) {
    archive(m.rank, m.sequence_id, m.epoch, m.rows_done, m.rows_total, m.missing_layer,
            m.missing_position);
  }
};
/// Asks for an order, which need not contain anything.
struct OrderWanted {
  static constexpr MessageType kType = MessageType::kOrderWanted;
  static void fields(auto& /*archive*/, auto& /*m*/) {}
};
/// A worker has been asked to end, and others have not.
struct Leaving {
  static constexpr MessageType kType = MessageType::kLeaving;
  static void fields(auto& /*archive*/, auto& /*m*/) {}
};
/// A collective failed here because these ranks' parts did not come.
struct WaitedFor {
  static constexpr MessageType kType = MessageType::kWaitedFor;
  std::uint64_t generation = 0;  // of the pool (RoundReport)
  std::vector<std::int32_t> ranks;
  static void fields(auto& archive, auto& m) { archive(m.generation, m.ranks); }
};
/// The leader: the pool goes on without the worker. Ok: it had asked for that.
struct Left {
  static constexpr MessageType kType = MessageType::kLeft;
  Outcome outcome;
  static void fields(auto& archive, auto& m) { archive(m.outcome); }
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

/// Limits of a worker that have taken effect; see kLimits.
enum class Limit : std::uint8_t {
  kStrangers,  // the first are TransportLimit's
  kPlaces,
  kUnread,
  kHello,          // a connection that has not introduced itself in time
  kEndedSequence,  // a connection whose sequences have all ended
  kRequestBytes,   // a layer request beyond the bytes in flight of its sequences, or of all
  kControls,       // a control beyond those of its connection's sequence, or of all, that wait
  kPulledBytes,    // a pull beyond the rows that its sequence, or all, wait for
};
inline constexpr std::size_t kLimits = 8;
/// `strangers`, `places`, `unread_answers`, `late_hello`, `ended_sequence`, `request_bytes`,
/// `controls`, `pulled_bytes`.
[[nodiscard]] std::string_view limit_name(Limit limit) noexcept;

/// Totals since the worker's start.
struct Beat {
  static constexpr MessageType kType = MessageType::kBeat;
  std::int32_t rank = 0;
  std::uint64_t ingested_rows = 0;
  std::uint64_t ingested_bytes = 0;
  std::uint64_t pulled_rows = 0;  // given back to clients
  std::uint64_t pulled_bytes = 0;
  std::array<std::uint64_t, kRefusals> refused{};
  std::array<std::uint64_t, kLimits> limited{};
  std::uint64_t connections = 0;                 // now open
  std::uint64_t accept_pauses = 0;               // for want of descriptors or memory
  std::vector<std::uint64_t> ingest_us_buckets;  // core/metrics Histogram::counts
  double ingest_us_sum = 0;
  static void fields(auto& archive, auto& m) {
    archive(m.rank, m.ingested_rows, m.ingested_bytes, m.pulled_rows, m.pulled_bytes, m.refused,
            m.limited, m.connections, m.accept_pauses, m.ingest_us_buckets, m.ingest_us_sum);
  }
};

}  // namespace tributary::wire
