// The request of POST /v1/sequences, the answer of it and of GET /v1/sequences/{id}, and that of
// GET /v1/workers: all that a client needs to reach a sequence. Both the writer and the reader are
// here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/wire/access_token.h"
#include "core/cache/sequence_table.h"
#include "core/model/pool_shape.h"
#include "core/sequencer/admit_request.h"

namespace tributary {

/// The event that a sequence waits for: rows of its prompt (`filling`), a step (`ready`), the
/// step's end (`stepping`).
enum class SequenceState { kFilling, kReady, kStepping };

/// Rows begin .. end - 1 of a sequence lie on worker `rank`.
struct Extent {
  std::int64_t begin = 0;  ///< the first row's position
  std::int64_t end = 0;    ///< behind the last row's
  int rank = 0;            ///< of the worker
};

/// A sequence as its pool knows it.
struct SequenceInfo {
  SequenceId id = 0;        ///< never used again for another
  std::uint32_t epoch = 0;  ///< its version: +1 with each truncation, and where rows were lost
  SequenceState state = SequenceState::kFilling;  ///< when the pool was asked last
  int home = 0;                                   ///< the rank that answers for it
  std::int64_t prompt_tokens = 0;                 ///< whose rows are to be pushed
  std::int64_t max_new_tokens = 0;                ///< that it may grow by
  std::int64_t present_tokens = 0;  ///< of them, that were there at admission: not to be pushed
  std::int64_t length = 0;          ///< committed; commit(), truncate()
  /// Ascending, without gaps: which workers get the prompt's rows; after a query(), which hold the
  /// `length` rows that there are now. Leaves of a prompt that has arrived may move.
  std::vector<Extent> extents;
  /// Rows that went with a worker, leaf by leaf, ascending: they are to be pushed again. Rank -1
  /// for those that wait for room, and cannot be pushed yet. Empty when all have come.
  std::vector<Extent> lost;
  std::vector<int> lost_workers;   ///< ranks of the pool that are gone, ascending
  wire::Token token{};             ///< what its pool's workers know its owner by
  std::string idempotency_key;     ///< its pool's affair: empty in a handle
  std::string idempotency_secret;  ///< likewise
  std::string missing;             ///< while filling: what has not come, in words
};

/// A sequence as its client holds it. Plain data: it may be handed to another process (another
/// client of the same tier takes it with TierClient::adopt()).
struct SequenceHandle : SequenceInfo {
  std::string pool;                    ///< that holds it
  int lease_ms = 0;                    ///< how long it outlives its client's silence
  std::vector<std::string> addresses;  ///< of the pool's workers, by rank, with their transport:
                                       ///< tcp://10.0.0.1:7070; not empty
  PoolShape shape;                     ///< the pool's heads, widths, layers and types
};

/// The first `length` rows of a sequence, for AdmitRequest::parent.
[[nodiscard]] inline Parent parent_of(const SequenceHandle& sequence, std::int64_t length) {
  return {.id = sequence.id, .epoch = sequence.epoch, .length = length, .token = sequence.token};
}

/// {"sequence_id": "ID", "epoch", "state", "missing", "pool", "home", "prompt_tokens",
/// "max_new_tokens", "present_tokens", "length", "token": "HEX", "lease_ms", "extents": [{"begin",
/// "end", "rank"}], "lost": [likewise], "lost_workers": [RANK], "workers": [{"rank", "address"}],
/// "shape": {fields of PoolShape, data types by name}}. The answer of GET has a token of zeros.
[[nodiscard]] std::string to_json(const SequenceHandle& sequence);
/// Throws kMalformedInput for text that to_json() does not write.
[[nodiscard]] SequenceHandle parse_sequence_handle(std::string_view text);

/// The answer of GET /v1/workers: {"workers": ["ADDRESS", ...]}, of all pools.
[[nodiscard]] std::string workers_to_json(const std::vector<std::string>& addresses);
/// Throws kMalformedInput for text that workers_to_json() does not write.
[[nodiscard]] std::vector<std::string> parse_workers(std::string_view text);

/// {"prompt_tokens", "max_new_tokens", "spread", "prefix": {"block_tokens", "key_bytes", "keys":
/// "HEX", "cache_salt": "HEX"}, "parent": {"sequence_id": "ID", "epoch", "length", "token":
/// "HEX"}}, without `prefix` where it has no keys and without `parent` where there is none; key and
/// secret travel in headers of their own. Throws as check_keys().
[[nodiscard]] std::string to_json(const AdmitRequest& request);
/// Throws kMalformedInput for text that to_json() does not write, except that `spread` may be left
/// out.
[[nodiscard]] AdmitRequest parse_admit_request(std::string_view body,
                                               std::string_view idempotency_key,
                                               std::string_view idempotency_secret);

}  // namespace tributary
