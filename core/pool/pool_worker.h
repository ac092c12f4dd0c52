// One rank of a pool: receives orders, keeps its copy of the sequence table, runs rounds.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "core/cost/built_in_costs.h"
#include "core/interface/backend.h"
#include "core/interface/clock.h"
#include "core/interface/communicator.h"
#include "core/plan/plan.h"
#include "core/pool/canary.h"
#include "core/pool/ingest_table.h"
#include "core/pool/order_channel.h"
#include "core/round/pool_client.h"
#include "core/round/round.h"
#include "core/sequencer/order.h"

namespace tributary {

struct WorkerConfig {
  AttentionShape attention;
  int layers = 1;
  std::int32_t pages = 0;  // of this worker; equal on all ranks
  int leaf_tokens = 2048;
  Exchange exchange = Exchange::kAuto;
  /// By which `auto` chooses the exchange: those of the pool's placement.
  MachineCosts costs = find_built_in_costs("cpu").costs;
  int workers_per_node = 1024;  // workers r / workers_per_node share a node
  /// How long a rank waits in the constructor for the others, which get page memory at their own
  /// pace.
  std::chrono::milliseconds start_timeout{60'000};
  /// From the order to the end of the round.
  std::chrono::milliseconds round_timeout{60'000};
  /// How long a follower waits for the next order. The sequencer sends one at least this often.
  std::chrono::milliseconds order_timeout{120'000};
  /// A canary reads at most this many rows on a worker; longer items are not recomputed.
  std::int64_t canary_rows = 16'384;

  [[nodiscard]] CostModelConfig cost_model() const {
    return {.costs = costs,
            .attention = attention,
            .projection = {},
            .layers = layers,
            .leaf_tokens = leaf_tokens,
            .workers_per_node = workers_per_node};
  }
};

/// Rank 0 learns this from an order.
struct RoundReport {
  Status status;  // the same on every rank, see Worker::lead
  bool stop = false;
  /// A collective failed: another rank is lost, or late, and nobody can go on with it. The pool
  /// goes on with the order that names its members, if one comes. The order's copies and its round
  /// are to be repeated.
  bool broken = false;
  /// Sequences of which this rank expects other rows than before: leaves were lost, or placed
  /// again.
  std::vector<SequenceId> rows_changed;
  std::vector<StepItem> interrupted;      // where it is broken: the round's items
  std::vector<int> waited_for;            // likewise: Communicator::waited_for()
  std::uint64_t generation = 0;           // how often the pool has regrouped, this order included
  bool regrouped = false;                 // the order named the pool's members, and they were there
  int rounds = 0;                         // 1 where a round ran
  double step_us = 0;                     // of the copies and the round, on this rank
  double copy_us = 0;                     // of its copies, on the slowest worker: see copy_pages
  PhaseTimes phase_us{};                  // per phase the slowest worker
  std::vector<std::int64_t> worker_rows;  // attention work per worker, rows x new tokens
  int members = 0;                        // ranks that took part
  std::vector<double> worker_attend_us;   // what each worker took for it; 0 of lost ones
  /// The last round before this order of which each rank's client got the states. A collective may
  /// have failed on some ranks alone.
  std::vector<std::uint64_t> completed_rounds;
  double mean_spread = 0;               // workers per sequence of the round
  std::uint64_t planned_bytes = 0;      // queries, rows and states of all workers, by
  std::uint64_t exchanged_bytes = 0;    // the plan and as the communicators counted them
  std::uint64_t state_bytes = 0;        // of planned_bytes: partial states
  Exchange exchange = Exchange::kAuto;  // the one that ran
  bool plan_reused = false;             // that of an earlier order, for a round of equal items
  /// Rounds up to this one of which no transfer is under way on any rank (IngestTable): at most the
  /// order's own.
  std::uint64_t drained_round = 0;
  /// False also where the order asked for it and a worker has more than canary_rows of the item.
  bool canary_checked = false;
  /// The error of the item's first new token and one head: the larger of the relative error of o
  /// (norm of the difference over the norm) and the absolute one of lse, against float64 over the
  /// same stored rows and the same query. The largest double where the state holds NaN or infinity.
  double canary_error = 0;
};

class Worker {
 public:
  /// All ranks construct their Worker together: configurations and backends are compared, and every
  /// rank throws kInvalidArgument, naming the two ranks, when they differ; kPoolFull when the page
  /// memory cannot be had on some rank. `client` and the others outlive the worker. `ingest`, where
  /// prompts' rows arrive, is told of admissions and ends.
  ///
  /// `communicator` carries what the ranks tell each other, from host memory; `exchange`, of the
  /// same ranks, queries and partial states from the backend's memory. They may be one where the
  /// backend's memory is the host's, and are where `exchange` is not given: kFailedPrecondition
  /// elsewhere.
  ///
  /// `orders` is for lead() and follow().
  Worker(const WorkerConfig& config, Backend& backend, Communicator& communicator,
         PoolClient& client, IngestTable& ingest, Communicator* exchange = nullptr,
         OrderChannel* orders = nullptr, Clock& clock = steady_clock());
  ~Worker();

  /// Rank 0: sends the order to all ranks and takes part in it, as perform(). Throws
  /// kFailedPrecondition on another rank.
  RoundReport lead(const Order& order);
  /// Other ranks: waits for one order and takes part in it. Throws kFailedPrecondition on rank 0.
  /// `between_orders` may be empty: a short piece of other work on what the worker has, done after
  /// each OrderChannel::wake() while no order has come, and again at once where it returns true.
  RoundReport follow(const std::function<bool()>& between_orders = {});

  /// Takes part in an order that every rank has. Changes of the table hold whatever the status.
  /// With kWorkerFailed (a client or a backend threw, on the worker that the message names; or a
  /// round of rows that have not arrived) the pool can go on: order the round again, or abort its
  /// steps. With any other status the pool goes on without a rank that is lost
  /// (RoundReport::broken), or ends. The status tells about everything but what the clients made of
  /// the round's states: where PoolClient::read_states throws, the next order fails.
  RoundReport perform(const Order& order);

  /// From any thread: rank `lost` is gone. What waits for it in a collective ends, and so do the
  /// collectives of which it is a member.
  void interrupt(int lost, const Status& reason);

  [[nodiscard]] const SequenceTable& table() const noexcept { return *table_; }
  /// Whether the copies of the last order were made. Else the next one makes them, and until then
  /// rows may be missing where the table says that they are.
  [[nodiscard]] bool copies_made() const noexcept { return copies_made_; }
  /// The cache, for those that write rows into it while no order reads them.
  [[nodiscard]] Cache& cache() noexcept { return *cache_; }

 private:
  void set_up();
  /// One by which this rank judges the others.
  [[nodiscard]] Deadline deadline_in(Duration timeout) const;
  void perform(const Order& order, RoundReport& report);
  void regroup(const Order& order);
  void begin_with(std::span<const Sequence> table);
  void leave(const Status& reason);
  [[nodiscard]] std::vector<int> waited_for() const;
  void apply(const TableOp& op, std::uint64_t round, RoundReport& report);
  void check_rows(std::span<const StepItem> items);
  void check_round(const Order& order);
  void prepare(std::span<const StepItem> items, RoundReport& report);
  Status round(const Order& order, Deadline deadline, RoundReport& report);
  Status agree(std::uint64_t round, Deadline deadline, RoundReport& report);

  WorkerConfig config_;
  Backend& backend_;
  std::mutex communicators_;      // held where these are changed, and by interrupt()
  std::uint64_t generation_ = 0;  // how often the pool has regrouped
  bool has_table_ = false;        // an order has come
  bool stopping_ = false;         // others end when they have carried out the last order
  /// Of the members: given at first, then the survivors that it owns.
  Communicator* communicator_;
  Communicator* exchange_;
  std::unique_ptr<Communicator> survivors_, exchanging_survivors_;
  PoolClient& client_;
  IngestTable& ingest_;
  OrderChannel* orders_;
  bool copies_made_ = true;
  Clock& clock_;
  std::vector<std::byte> order_bytes_;
  std::optional<SequenceTable> table_;  // empty only until the handshake
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<RoundExecutor> executor_;
  PlanBuilder builder_;
  Routing routing_;
  RankPlan plan_;
  ExchangeVolume volume_;
  /// The plan was built for these items; empty where the table has changed since.
  std::vector<StepItem> planned_;
  std::vector<std::int32_t> item_layer_;  // of the round's items
  Status failure_;                        // this rank's own, until it was told to the others
  /// Sequences whose rows had not all arrived here when last asked for.
  std::unordered_set<SequenceId> arriving_;
  std::uint64_t drained_round_ = 0;
  std::uint64_t completed_round_ = 0;
  CanaryVerdict canary_;
  PhaseTimes times_{};
  double copy_us_ = 0;  // of this order's copies, on this rank
  std::uint64_t exchanged_before_ = 0;
};

}  // namespace tributary
