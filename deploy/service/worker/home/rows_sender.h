// Gives rows back to clients: from a pull's header to rows as they are stored, with their checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/transport/transport.h"
#include "core/base/deadline.h"
#include "core/base/raw_bytes.h"
#include "core/cache/sequence_table.h"
#include "core/interface/backend.h"
#include "core/interface/clock.h"
#include "core/pool/ingest_table.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/protocol/worker_messages.h"
#include "deploy/service/worker/home/byte_shares.h"

namespace tributary {

/// Rows are read by the worker's thread between orders: the table and what it names stand still
/// there, and the backend may be asked. So no page waits for a reader, and a round waits for one
/// piece at most.
class RowsSender {
 public:
  struct Links {
    /// `rows` stay valid until `sent`.
    std::function<void(PeerId, const wire::PullReply&, std::span<const std::byte> rows,
                       std::function<void()> sent)>
        reply;
    std::function<void()> wake;        // the worker's thread: serve() has work
    std::function<void()> want_order;  // the leader: this worker's table is behind
  };
  /// The bound on rows that are asked for, until they have been sent; a sequence's share is an
  /// eighth. A message asks for no more than that share.
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  static constexpr std::size_t kMaxPullBytes = kMaxBytes / 8;
  /// What serve() reads at a time, some 30 us: by so much a round may begin later.
  static constexpr std::size_t kPieceBytes = std::size_t{128} << 10;

  /// No more is read for a connection while rows of so many bytes have not left on it: they would
  /// only wait there, and the answer to a layer behind them.
  static constexpr std::size_t kMaxUnsentBytes = std::size_t{512} << 10;

  /// `table` and `cache` are the worker's. All outlive the sender.
  RowsSender(int rank, const SequenceTable& table, const IngestTable& arrived, Backend& backend,
             const Cache& cache, Links links, Clock& clock);

  /// On the transport's thread. `allowed`: the connection has proven the sequence.
  void receive(PeerId peer, const wire::Pull& pull, bool allowed);

  // On the worker's thread.

  /// Reads a piece. Returns whether there is more to read now.
  [[nodiscard]] bool serve();
  /// The table may have changed: what waited for that is tried again.
  void order_ended();

  // Any thread.

  /// Fills in a beat's counts of pulled rows.
  void add_counts(wire::Beat& beat) const;
  /// Pulls that found no room, so far.
  [[nodiscard]] std::uint64_t refused() const;

 private:
  struct Job {
    PeerId peer = 0;
    wire::Pull asked;
    Time deadline{};
    int orders = 0;           // that have ended since it was ahead of the table
    RawBytes rows;            // room for all of them
    wire::PullReply reply{};  // with what has been read
    [[nodiscard]] ByteShares::Share share(std::size_t row_bytes) const {
      return {asked.sequence_id, static_cast<std::size_t>(asked.count) * row_bytes};
    }
  };

  /// Of one connection.
  struct Line {
    std::deque<std::unique_ptr<Job>> waiting;
    std::size_t unsent = 0;  // bytes of rows that have not left
  };
  using Lines = std::map<PeerId, Line>;

  [[nodiscard]] Status check(const wire::Pull& pull, bool allowed) const;
  /// The line whose turn it is; the end where nothing can be read now. Call it under the lock.
  [[nodiscard]] Lines::iterator next_line();
  /// Whether the client knows of changes that no order has brought here.
  [[nodiscard]] bool is_ahead(const wire::Pull& pull) const;
  /// Reads the next piece. Returns true when the job has ended.
  [[nodiscard]] bool read(Job& job);
  void wait_for_order(std::unique_ptr<Job> job);
  void finish(std::unique_ptr<Job> job, const Status& status);
  /// Its rows, if it has some, have left.
  void give_back(Job& job, std::size_t sent);

  const int rank_;
  const SequenceTable& table_;
  const IngestTable& arrived_;
  Backend& backend_;
  const Cache& cache_;
  const std::size_t row_bytes_;
  const Links links_;
  Clock& clock_;

  // Of the worker's thread.
  std::unique_ptr<Job> current_;
  std::vector<std::unique_ptr<Job>> ahead_;  // of the table
  std::vector<PageRun> runs_;

  mutable std::mutex mutex_;  // guards all that follows
  Lines lines_;
  PeerId last_ = 0;  // whose turn was last
  ByteShares held_{kMaxBytes};
  std::vector<RawBytes> spare_;
  std::uint64_t rows_ = 0;
};

}  // namespace tributary
