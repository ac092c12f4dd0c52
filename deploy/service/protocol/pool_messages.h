// The messages between a pool's leader and the control plane over their WebSocket: JSON objects
// with a `type`. Parsers are strict: unknown types and fields, missing fields and values outside
// their bounds throw kMalformedInput.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/cache/sequence_table.h"
#include "deploy/service/protocol/admission.h"
#include "deploy/service/protocol/pool_metrics.h"

namespace tributary {

/// Version of these messages; a pool of another version is refused when it registers.
inline constexpr int kPoolProtocol = 13;
/// The bound on a registration with all of its sequences. A pool is full before it reaches that, so
/// that what it holds can register.
inline constexpr std::size_t kMaxRegistrationBytes = std::size_t{256} << 20;
/// The most that so many sequences with so many extents in all may take of it.
[[nodiscard]] std::int64_t most_registration_bytes(std::int64_t sequences,
                                                   std::int64_t extents) noexcept;

struct WorkerInfo {
  int rank = 0;
  std::string host = {};
  std::string address = {};  // of its data plane: tcp://10.0.0.1:7070
  std::string backend = {};
  int threads = 0;  // that compute; 0: not said
};

// Pool -> control plane.

struct RegisterPool {
  int protocol = kPoolProtocol;
  std::string name;              // chosen by the operator; unique among the pools of a tier
  std::string run;               // random, of this start; secret: who knows it counts as the pool
  std::string transport;         // of its data plane: `tcp`, `tls`, `ucx`
  std::string transport_reason;  // why that one
  std::string costs;             // of which machine: by what it places
  std::string communicator;      // that carries queries and partial states between the workers
  PoolShape shape;
  int pages_per_worker = 0;
  int lease_ms = 0;
  bool draining = false;
  std::uint32_t last_incarnation = 0;  // of the control plane that its sequences came from; 0: none
  std::vector<WorkerInfo> workers;
  std::vector<SequenceInfo> sequences;
  int more = 0;  // messages that follow with the rest of its sequences: see registration()
};
/// Follows a registration that has `more`.
struct MoreSequences {
  std::vector<SequenceInfo> sequences;
};
/// Sent twice a second.
struct Heartbeat {
  struct Worker {
    int rank = 0;
    std::int32_t pages_used = 0;
    std::int32_t pages_reserved = 0;  // promised, not used yet
    std::int32_t pages_idle = 0;      // of named blocks that nobody uses: others may have them
    std::int64_t homes = 0;           // sequences
    std::int64_t heartbeat_age_ms = 0;
    std::int64_t attended_rows = 0;  // rows x new tokens, since the pool's start
    double attend_seconds = 0;       // that it took
    bool draining = false;           // it gets no new rows, and its leaves are moved away
    bool lost = false;               // it is gone, and the pool goes on
    bool left = false;               // likewise, as it was asked to
  };
  bool draining = false;
  std::vector<Worker> workers;
  PoolMetrics metrics;
};
/// Answer to Admit, Free, Query, SetDraining and DrainWorker, with the same `request`.
struct PoolReply {
  std::uint64_t request = 0;
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  std::optional<SequenceInfo> sequence;  // of Admit and Query
};
/// A sequence ended without a Free of the control plane.
struct SequenceEnded {
  SequenceId id = 0;
  std::string reason;  // `lease_expired`, `freed`
};
/// The pool's last word: it ends as planned, and holds no sequence.
struct Goodbye {};
/// Another process is in the place of a worker that was lost, or has left.
struct WorkerJoined {
  WorkerInfo worker;
};

// Control plane -> pool.

/// Answer to RegisterPool; a code other than ok is followed by the end of the connection.
struct Registered {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  std::uint32_t incarnation = 0;
};
struct Admit {
  std::uint64_t request = 0;
  SequenceId id = 0;
  AdmitRequest wanted;
};
struct Free {
  std::uint64_t request = 0;
  SequenceId id = 0;
};
struct Query {
  std::uint64_t request = 0;
  SequenceId id = 0;
};
struct SetDraining {
  std::uint64_t request = 0;
  bool draining = false;
};
/// One worker of the pool: see LeafMoves::drain_worker().
struct DrainWorker {
  std::uint64_t request = 0;
  int worker = 0;  // its rank
  bool draining = false;
};

using FromPool = std::variant<RegisterPool, MoreSequences, Heartbeat, PoolReply, SequenceEnded,
                              Goodbye, WorkerJoined>;
using ToPool = std::variant<Registered, Admit, Free, Query, SetDraining, DrainWorker>;

/// A pool's registration as messages of some 128 KiB, so that the control plane, which reads one in
/// some milliseconds, does other work in between.
[[nodiscard]] std::vector<FromPool> registration(RegisterPool pool);

[[nodiscard]] std::string to_json(const FromPool& message);
[[nodiscard]] std::string to_json(const ToPool& message);
[[nodiscard]] FromPool parse_from_pool(std::string_view text);
[[nodiscard]] ToPool parse_to_pool(std::string_view text);

[[nodiscard]] std::string_view sequence_state_name(SequenceState state) noexcept;
/// A sequence id as decimal text, as in JSON, URLs and every message, and back; throws
/// kMalformedInput.
[[nodiscard]] std::string id_text(SequenceId id);
[[nodiscard]] SequenceId parse_id(std::string_view text);

}  // namespace tributary
