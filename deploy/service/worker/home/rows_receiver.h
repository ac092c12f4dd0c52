// Receives prompt rows from outside: from a message's header to checked, counted and acknowledged
// rows in their pages.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "comm/transport/transport.h"
#include "core/base/deadline.h"
#include "core/interface/backend.h"
#include "core/interface/clock.h"
#include "core/metrics/histogram.h"
#include "core/pool/ingest_table.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

/// receive() and the landings run on the transport's thread; add_counts() may run on any.
class RowsReceiver {
 public:
  struct Links {
    std::function<void(PeerId, const wire::RowsReply&)> reply;
    std::function<void(const wire::Progress&)> progress;  // to the leader
  };
  /// The bound on rows that cannot land in their pages directly.
  static constexpr std::size_t kMaxStagedBytes = std::size_t{256} << 20;

  /// All outlive the receiver.
  RowsReceiver(int rank, IngestTable& table, Backend& backend, Cache& cache, Links links,
               Clock& clock);

  /// Returns the place for the rows; no value if they were refused (and answered). `allowed`: the
  /// connection has proven the sequence.
  [[nodiscard]] std::optional<Landing> receive(PeerId peer, const wire::Rows& rows, bool allowed,
                                               std::size_t payload_bytes);
  /// Tells the leader how a sequence's rows stand here, if it is open: from the worker's thread.
  void tell(SequenceId id);
  /// Counts a message that is too malformed to be answered.
  void count_malformed() { count_refusal(wire::Refusal::kMalformed); }
  /// Counts sequences that a connection has not proven, though it said so.
  void count_unproven(std::size_t sequences);

  /// The senders that are still sending rows of a sequence that had ended by the last call, each
  /// once. The sequence's pages wait for these rows, and a sender that is stopped in the middle may
  /// never finish.
  [[nodiscard]] std::vector<PeerId> late_senders();

  /// Fills in a beat's counts of rows.
  void add_counts(wire::Beat& beat) const;

 private:
  /// Rows in flight.
  struct Transfer {
    PeerId peer = 0;
    wire::Rows rows;
    IngestTable::Transfer table;
    std::vector<std::byte> staged;  // empty where they land in their pages
    std::vector<std::span<std::byte>> pieces;
    std::uint32_t crc32c = 0;  // of what has come
    Time arrival{};
  };

  [[nodiscard]] std::vector<std::span<std::byte>> pages_of(const wire::Rows& rows,
                                                           std::span<const PageRun> runs);
  void landed(Transfer& transfer, const Status& status);
  void tell(SequenceId id, const IngestTable::Progress& progress);
  void store(const Transfer& transfer);
  void refuse(PeerId peer, std::uint64_t request, wire::Refusal reason, const Status& status);
  void count_refusal(wire::Refusal reason);

  int rank_;
  IngestTable& table_;
  Backend& backend_;
  Cache& cache_;
  Links links_;
  Clock& clock_;
  std::size_t staged_bytes_ = 0;

  mutable std::mutex mutex_;                           // guards all that follows
  std::unordered_map<std::uint64_t, PeerId> senders_;  // by ticket
  std::vector<std::uint64_t> ended_;                   // tickets that late_senders() found
  std::uint64_t rows_ = 0;
  std::uint64_t bytes_ = 0;
  std::array<std::uint64_t, wire::kRefusals> refused_{};
  DurationHistogram seconds_;
};

}  // namespace tributary
