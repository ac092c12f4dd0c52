// A whole pool in one process for tests: ranks as threads, a client that makes up rows and keeps
// every output, a backend that can be told to fail, and rank 0's loop.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/interface/backend.h"
#include "core/pool/pool_worker.h"
#include "core/sequencer/sequencer.h"

namespace tributary {

/// (tag, layer, position) of a token -> its merged state, AttentionShape::state_shape().
using PoolOutputs = std::map<std::tuple<std::int64_t, int, std::int64_t>, std::vector<float>>;

/// The number of tokens, in order, whose outputs differ in any bit, or that only one side has.
[[nodiscard]] std::size_t differing_outputs(const PoolOutputs& a, const PoolOutputs& b);

/// Called on a rank's thread before it does `call`: `write_tokens`, `read_states` of the client;
/// `append`, `attend`, `merge`, `gather`, `synchronize`, `load_rows`,
/// `allocate` of the backend. It may throw.
using PoolHook = std::function<void(int rank, std::string_view call)>;

struct PoolSetup {
  int workers = 1;
  AttentionShape shape{.heads = 3,
                       .kv_lora_rank = 24,
                       .qk_rope_head_dim = 8,
                       .row_format = RowFormat::kBF16,
                       .query_dtype = DType::kF32,
                       .softmax_scale = 0.25F};
  int layers = 2;
  std::int32_t pages = 96;
  int leaf_tokens = 64;
  SpreadPolicy spread = SpreadPolicy::kAuto;
  Exchange exchange = Exchange::kAuto;
  std::function<std::unique_ptr<Backend>(int rank)> backend;  // empty: the reference
  /// Makes the ranks' communicator for the backend's memory. Empty: exchanges go through the host
  /// if the backend's memory is not the host's.
  std::function<std::unique_ptr<Communicator>(Backend& backend, Communicator& communicator)>
      connect;
  /// The content of every element of every page before its first row; NaN unless set otherwise.
  float page_fill = std::numeric_limits<float>::quiet_NaN();
  PoolHook hook;
  /// Called on a rank's thread after an attend; may change the states.
  std::function<void(int rank, const AttendArgs&)> after_attend;
  /// The script sends prompts, by PoolLeader::push. Else the harness does, after the order that
  /// admits them.
  bool pushed = false;
  /// Changes one rank's configuration.
  std::function<void(int rank, WorkerConfig&)> change;
  /// Ranks that construct their worker and then do nothing more.
  std::vector<int> absent;
  std::chrono::milliseconds timeout{20'000};
  Clock* clock = &steady_clock();  // of the workers
  /// How many of `tokens` tokens proposed from `position` on are right; empty: all. The wrong ones
  /// get other rows and queries, and their outputs are not kept.
  std::function<std::int32_t(std::int64_t tag, std::int64_t position, std::int32_t tokens)> accept;
  /// The positions that a token selects, where shape.topk is not 0; empty: pool_selection().
  std::function<std::vector<std::int32_t>(std::int64_t tag, int layer, std::int64_t position)>
      select;
};

/// The clients' values, as the pool stores them: one row [latent_dim], one query [heads,
/// latent_dim].
[[nodiscard]] std::vector<float> pool_row(const AttentionShape& shape, std::int64_t tag, int layer,
                                          std::int64_t position);
[[nodiscard]] std::vector<float> pool_query(const AttentionShape& shape, std::int64_t tag,
                                            int layer, std::int64_t position);

/// The positions [topk] that a token selects: at random, -1 behind the last.
[[nodiscard]] std::vector<std::int32_t> pool_selection(const AttentionShape& shape,
                                                       std::int64_t tag, int layer,
                                                       std::int64_t position);

struct PoolRequest {
  std::int64_t tag = 0, prompt_tokens = 0, max_new_tokens = 0;
};

struct PoolResult {
  PoolOutputs outputs;                        // of all ranks
  std::vector<std::vector<Status>> statuses;  // per rank, of every order
};

/// Where a rank receives rows from outside.
struct PoolReceiver {
  IngestTable* table = nullptr;
  Backend* backend = nullptr;
  Cache* cache = nullptr;
};

/// Rank 0.
class PoolLeader {
 public:
  PoolLeader(const PoolSetup& setup, Worker& worker, std::atomic<std::int64_t>& salt,
             std::vector<std::shared_future<PoolReceiver>> receivers);

  Sequencer sequencer;

  /// Runs what was decided. Fails the test if the exchanged bytes are not the planned ones.
  RoundReport lead();
  RoundReport lead(Order order);
  /// Opens steps of all of `requests`, runs all layers and makes sure that every state was read;
  /// rounds and bytes of all of it together. Throws a round's error, with the steps aborted.
  RoundReport run_layers(const std::vector<StepItem>& requests);
  /// The same, and commits what setup.accept says.
  RoundReport step(const std::vector<StepItem>& requests);
  void abort(const std::vector<StepItem>& requests);
  std::optional<SequenceId> admit(const PoolRequest& request);

  /// One round of open steps; throws the round's error, which leaves the steps open.
  RoundReport round(const std::vector<StepItem>& items, CanaryOrder canary = {});
  /// Commits what setup.accept says, after the last layer.
  void commit(SequenceId id);

  [[nodiscard]] PoolReceiver receiver(int rank) const;
  /// Sends all rows of the prompt of a sequence, whose admission was led, to their owners, from
  /// another thread.
  void push(SequenceId id);
  void push(const Sequence& sequence);

  struct Batching {
    int max_batch = 1000;
    /// New tokens of a sequence in its next step, before its limit counts.
    std::function<std::int32_t(std::int64_t tag, std::int64_t step)> tokens =
        [](std::int64_t, std::int64_t) { return 1; };
  };
  /// Admits, decodes and frees all requests, in order, as room permits; pushed ones are closed.
  void decode(const std::vector<PoolRequest>& requests, const Batching& batching);

  /// While it is not 0 the clients make other rows and queries, and keep no outputs.
  void set_salt(std::int64_t salt) { salt_ = salt; }

  std::uint64_t exchanged_bytes = 0, state_bytes = 0, rounds = 0;

 private:
  RoundReport lead_one(const Order& order);

  friend PoolResult run_pool(const PoolSetup&, const std::function<void(PoolLeader&)>&);

  const PoolSetup& setup_;
  Worker& worker_;
  std::vector<Status> statuses_;
  std::atomic<std::int64_t>& salt_;
  std::vector<std::shared_future<PoolReceiver>> receivers_;
};

/// Runs a pool, with `script` on rank 0, then stops it unless it has ended by itself. Rethrows what
/// a rank throws while it sets up, and what the script throws.
PoolResult run_pool(const PoolSetup& setup, const std::function<void(PoolLeader&)>& script);

/// Requests whose prompts and growth touch borders of pages and leaves of 64.
[[nodiscard]] std::vector<PoolRequest> border_requests();

}  // namespace tributary
