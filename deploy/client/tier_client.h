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

struct TierClientConfig {
  std::string url = "http://127.0.0.1:7300";  // of the control plane
  std::string bearer_token;
  std::string certificate_authority;  // PEM file; empty: the system's
  bool busy_poll = false;
  bool shared_memory = false;
  std::chrono::milliseconds timeout{10'000};  // of calls that are given no deadline
  /// Keep the leases of sequences that were admitted here, as long as this object lives.
  bool renew_leases = true;
  /// Bytes of rows that may be on their way at once.
  std::size_t max_in_flight_bytes = std::size_t{256} << 20;
};

/// A sequence as its client holds it. Plain data: may be handed to another process (another client
/// of the same tier takes it with adopt()).
struct SequenceHandle {
  SequenceId id = 0;
  std::uint32_t epoch = 0;
  wire::Token token{};
  std::string pool;
  int home = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t max_new_tokens = 0;
  std::int64_t length = 0;  // committed, as this client knows it; kept by commit() and truncate()
  std::vector<Extent> extents;
  std::vector<std::string> addresses;  // of the pool's workers, by rank
  wire::Shape shape;
  int lease_ms = 0;
};
/// A handle as JSON, for another process, and back; throws kMalformedInput.
[[nodiscard]] std::string to_json(const SequenceHandle& sequence);
[[nodiscard]] SequenceHandle parse_sequence_handle(std::string_view text);

/// What a pool says about a sequence.
struct SequenceStatus {
  SequenceState state = SequenceState::kFilling;
  std::int64_t length = 0;
  std::string missing;  // while filling: what has not come, in words
};

/// One sequence's part of a layer call. Pointers to caller's memory, valid during the call. Types
/// and sizes as wire::RoundMode says, per token, dense.
struct LayerItem {
  SequenceHandle* sequence = nullptr;
  std::int32_t tokens = 1;
  const void* input = nullptr;  // attend: query then row, per token; forward: hidden states
  float* output = nullptr;
};

/// Calls are blocking and may come from any thread; one sequence is used by one call at a time.
/// They throw Error: kDeadlineExceeded, kPoolLost (the worker or its pool is gone: the sequences
/// are too), kPoolFull (admit: retry_after_ms() says when to come back), what the tier answered.
class TierClient {
 public:
  explicit TierClient(const TierClientConfig& config);
  /// Over another transport than UCX, for tests.
  using MakeTransport =
      std::function<std::unique_ptr<Transport>(const TransportConfig&, TransportHandler&)>;
  TierClient(const TierClientConfig& config, const MakeTransport& make_transport);
  ~TierClient();
  TierClient(const TierClient&) = delete;
  TierClient& operator=(const TierClient&) = delete;

  struct AdmitOptions {
    std::int64_t prompt_tokens = 0;
    std::int64_t max_new_tokens = 0;
    SpreadPolicy spread = SpreadPolicy::kAuto;
    std::string idempotency_key;  // empty: a random one, so that a lost answer is asked for again
  };
  [[nodiscard]] SequenceHandle admit(const AdmitOptions& options,
                                     std::optional<Deadline> deadline = {});
  /// After a kPoolFull of admit(): when to try again.
  [[nodiscard]] std::chrono::milliseconds retry_after() const;
  /// Waits for room instead of throwing kPoolFull, and for a tier that is kUnavailable (it starts,
  /// or starts again), until the deadline.
  [[nodiscard]] SequenceHandle admit_waiting(const AdmitOptions& options, Deadline deadline);
  /// Keeps the lease of a sequence that another client was given.
  void adopt(const SequenceHandle& sequence);
  [[nodiscard]] SequenceStatus query(const SequenceHandle& sequence,
                                     std::optional<Deadline> deadline = {});
  /// After the last push_rows(): until the pool's leader has heard from every owner. Throws
  /// kDeadlineExceeded saying what is missing.
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
  void attend_projected(std::span<const LayerItem> items, int layer,
                        std::optional<Deadline> deadline = {});
  void forward(std::span<const LayerItem> items, int layer, std::optional<Deadline> deadline = {});

  /// Ends the step of each sequence with so many accepted tokens (0: an abort). Returns when all
  /// have been committed.
  void commit(std::span<SequenceHandle* const> sequences, std::span<const std::int32_t> accepted,
              std::optional<Deadline> deadline = {});
  void truncate(SequenceHandle& sequence, std::int64_t length,
                std::optional<Deadline> deadline = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
