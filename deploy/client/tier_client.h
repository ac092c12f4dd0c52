// The client library of a decode tier: what a prefill tier or a model runner links. Admission over
// HTTP, rows and steps over the data plane.
#pragma once

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

#include "comm/transport/transport.h"
#include "comm/wire/messages.h"
#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/placement/placement.h"
#include "deploy/tier/pool_messages.h"

namespace tributary {

/// How a client reaches its tier.
struct TierClientConfig {
  std::string url = "http://127.0.0.1:7300";  ///< of the control plane
  std::string bearer_token;                   ///< that the control plane asks for; empty: none
  std::string certificate_authority;          ///< PEM file; empty: the system's
  bool busy_poll = false;      ///< spin while waiting: microseconds less, a core more
  bool shared_memory = false;  ///< to workers on this machine: a killed client is noticed late
  std::chrono::milliseconds timeout{10'000};  ///< of calls that are given no deadline
  bool renew_leases = true;  ///< of sequences that were admitted here, while this object lives
  std::size_t max_in_flight_bytes = std::size_t{256} << 20;  ///< of rows on their way at once
};

/// A sequence as its client holds it. Plain data: may be handed to another process (another client
/// of the same tier takes it with adopt()).
struct SequenceHandle {
  SequenceId id = 0;                   ///< never used again for another
  std::uint32_t epoch = 0;             ///< its version: +1 with each truncation
  wire::Token token{};                 ///< what its pool's workers know its owner by
  std::string pool;                    ///< that holds it
  int home = 0;                        ///< the rank that answers for it
  std::int64_t prompt_tokens = 0;      ///< whose rows are to be pushed
  std::int64_t max_new_tokens = 0;     ///< that it may grow by
  std::int64_t length = 0;             ///< committed, as this client knows it; commit(), truncate()
  std::vector<Extent> extents;         ///< which rank takes which rows of the prompt
  std::vector<std::string> addresses;  ///< of the pool's workers, by rank
  wire::Shape shape;                   ///< the pool's heads, widths, layers and types
  int lease_ms = 0;                    ///< how long it outlives its client's silence
};
/// A handle as JSON, for another process, and back; throws kMalformedInput.
[[nodiscard]] std::string to_json(const SequenceHandle& sequence);
[[nodiscard]] SequenceHandle parse_sequence_handle(std::string_view text);

/// What a pool says about a sequence.
struct SequenceStatus {
  SequenceState state = SequenceState::kFilling;  ///< filling, ready or stepping
  std::int64_t length = 0;                        ///< committed
  std::string missing;                            ///< while filling: what has not come, in words
};

/// One sequence's part of a layer call. Pointers to caller's memory, valid during the call. Types
/// and sizes as wire::RoundMode says, per token, dense.
struct LayerItem {
  SequenceHandle* sequence = nullptr;  ///< whose step this is
  std::int32_t tokens = 1;             ///< new ones, the same in every layer of a step
  const void* input = nullptr;  ///< attend: query then row, per token; forward: hidden states
  float* output = nullptr;      ///< where the result goes
};

/// Calls are blocking and may come from any thread; one sequence is used by one call at a time.
/// They throw Error: kDeadlineExceeded, kPoolLost (the worker or its pool is gone: the sequences
/// are too), kPoolFull (admit: retry_after_ms() says when to come back), what the tier answered.
class TierClient {
 public:
  /// Throws kInvalidArgument for a URL that is none, kIo for a certificate that cannot be read.
  explicit TierClient(const TierClientConfig& config);
  /// Makes the transport of the data plane.
  using MakeTransport =
      std::function<std::unique_ptr<Transport>(const TransportConfig&, TransportHandler&)>;
  /// Over another transport than UCX, for tests.
  TierClient(const TierClientConfig& config, const MakeTransport& make_transport);
  ~TierClient();
  TierClient(const TierClient&) = delete;
  TierClient& operator=(const TierClient&) = delete;

  /// What a new sequence needs.
  struct AdmitOptions {
    std::int64_t prompt_tokens = 0;             ///< rows that will be pushed; at least 1
    std::int64_t max_new_tokens = 0;            ///< room is reserved for them too
    SpreadPolicy spread = SpreadPolicy::kAuto;  ///< over which workers
    std::string idempotency_key;                ///< a repeated one admits once; empty: a random one
  };
  /// Reserves room for a sequence. Throws kPoolFull (see retry_after()), kTooLarge for what no pool
  /// can hold, kUnavailable without a pool.
  [[nodiscard]] SequenceHandle admit(const AdmitOptions& options,
                                     std::optional<Deadline> deadline = {});
  /// After a kPoolFull of admit(): when to try again.
  [[nodiscard]] std::chrono::milliseconds retry_after() const;
  /// Waits for room instead of throwing kPoolFull, and for a tier that is kUnavailable (it starts,
  /// or starts again), until the deadline.
  [[nodiscard]] SequenceHandle admit_waiting(const AdmitOptions& options, Deadline deadline);
  /// Keeps the lease of a sequence that another client was given.
  void adopt(const SequenceHandle& sequence);
  /// What its pool says about a sequence now. Throws kNotFound for one that has ended.
  [[nodiscard]] SequenceStatus query(const SequenceHandle& sequence,
                                     std::optional<Deadline> deadline = {});
  /// After the last push_rows(): until the pool's leader has heard from every owner. A control
  /// plane that is gone, or has lost sight of the pool, is waited for while the pool's worker is
  /// there. Throws kDeadlineExceeded saying what is missing.
  void wait_ready(const SequenceHandle& sequence, std::optional<Deadline> deadline = {});
  /// Ends the sequence; one that has ended already is no error.
  void free(const SequenceHandle& sequence, std::optional<Deadline> deadline = {});

  /// Rows of positions begin, begin + 1, ... of one layer of the prompt, in the pool's row type;
  /// split by extent here. Returns when `rows` may be reused and every owner has acknowledged them;
  /// when it throws, `rows` may be reused too, and what was acknowledged stays.
  void push_rows(const SequenceHandle& sequence, int layer, std::int64_t begin,
                 std::span<const std::byte> rows, std::optional<Deadline> deadline = {});

  /// One layer of a step of all items, in one go; splits them by home, waits for all. The first
  /// layer call at a sequence's `length` opens its step. On failure of some items throws the first
  /// one's error after all have ended; outputs of the others are there.
  void attend(std::span<const LayerItem> items, int layer, std::optional<Deadline> deadline = {});
  /// As attend(), with the heads' values projected by the pool's W_UV, where it has weights.
  void attend_projected(std::span<const LayerItem> items, int layer,
                        std::optional<Deadline> deadline = {});
  /// As attend(), for the whole attention module: hidden states in, hidden states out, where the
  /// pool has weights.
  void forward(std::span<const LayerItem> items, int layer, std::optional<Deadline> deadline = {});

  /// Ends the step of each sequence with so many accepted tokens (0: an abort). Returns when all
  /// have been committed.
  void commit(std::span<SequenceHandle* const> sequences, std::span<const std::int32_t> accepted,
              std::optional<Deadline> deadline = {});
  /// Drops the rows from `length` on, between steps; the handle gets a new epoch.
  void truncate(SequenceHandle& sequence, std::int64_t length,
                std::optional<Deadline> deadline = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
