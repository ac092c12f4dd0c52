// A whole step of a pool, repeated: plan, queries out, attention, partial states back, combine.
// Rows and queries are made beforehand, so that only the pool's own work is measured.
#pragma once

#include <cstdint>
#include <vector>

#include "core/interface/backend.h"
#include "core/interface/communicator.h"
#include "core/pool/pool_worker.h"
#include "core/sequencer/sequencer.h"
#include "deploy/app/bench/prepared_client.h"

namespace tributary::bench {

/// DeepSeek's 512 + 64 with queries in bf16.
[[nodiscard]] AttentionShape attention_shape(int heads, RowFormat format = RowFormat::kBF16);

struct StepCaseConfig {
  AttentionShape attention;
  int layers = 1;       // of a step
  int pool_layers = 1;  // at least `layers`: steps take them in turns
  int batch = 1;
  std::int64_t context = 4096;  // rows of each sequence, its new one included
  int leaf_tokens = 2048;
  MachineCosts costs = find_built_in_costs("cpu").costs;  // of placement; equal on all ranks
};

/// All ranks construct it together; rank 0 runs steps and the others follow. Every rank has a
/// sequencer of its own, which decides what the others' do: no order travels.
class StepCase {
 public:
  /// `exchange` carries queries and partial states if `communicator` does not take pointers of the
  /// backend's memory (Worker).
  StepCase(const StepCaseConfig& config, Backend& backend, Communicator& communicator,
           Communicator* exchange = nullptr);

  /// On rank 0: runs one step, of which nothing is committed, and returns the times of all layers
  /// together. Throws the step's error.
  RoundReport run();
  /// On rank 0: the last call; the others return from follow().
  void stop();
  /// On the others: takes part until rank 0 stops.
  void follow();

 private:
  /// Whether there is one more step, from rank 0 to all.
  bool share(bool more);
  RoundReport step();

  Communicator& communicator_;
  int layers_, pool_layers_;
  int next_layer_ = 0;
  PreparedClient client_;
  IngestTable ingest_;
  Worker worker_;
  Sequencer sequencer_;
  std::vector<StepItem> step_;
};

}  // namespace tributary::bench
