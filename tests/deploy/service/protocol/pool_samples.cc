// One full example of every message of a pool and the control plane, with no field at its default.
#include "tests/deploy/service/protocol/pool_samples.h"

#include "core/base/dtype.h"

namespace tributary {

PoolShape sample_shape() {
  PoolShape shape;
  shape.heads = 16;
  shape.kv_lora_rank = 512;
  shape.qk_rope_head_dim = 64;
  shape.v_head_dim = 128;
  shape.hidden_size = 2048;
  shape.layers = 27;
  shape.leaf_tokens = 2048;
  shape.row_format = RowFormat::kBF16;
  shape.query_dtype = DType::kF32;
  shape.softmax_scale = 0.1147213867929261F;  // not a short decimal
  shape.qk_nope_head_dim = 128;
  shape.latent_norm_eps = 1e-6F;
  return shape;
}

SequenceInfo sample_sequence() {
  SequenceInfo sequence;
  sequence.id = 0xfedcba9876543210;  // above 2^63, and no double holds it
  sequence.epoch = 3;
  sequence.state = SequenceState::kStepping;
  sequence.home = 1;
  sequence.prompt_tokens = 5000;
  sequence.max_new_tokens = 200;
  sequence.present_tokens = 1024;
  sequence.length = 5100;
  sequence.extents = {{0, 4096, 0}, {4096, 5000, 1}};
  for (std::size_t i = 0; i < sequence.token.size(); ++i) {
    sequence.token[i] = static_cast<std::uint8_t>(17 * i);
  }
  sequence.idempotency_key = "0d8c2f5e-key";
  sequence.idempotency_secret = "0d8c2f5e-secret";
  sequence.missing = "layer 3, position 77";
  return sequence;
}

PoolMetrics sample_metrics() {
  PoolMetrics m;
  std::uint64_t next = 1;
  for (std::uint64_t* count : {&m.rounds,
                               &m.failed_rounds,
                               &m.tokens,
                               &m.steps,
                               &m.aborted_steps,
                               &m.refused_items,
                               &m.exchanged_bytes,
                               &m.ingested_rows,
                               &m.ingested_bytes,
                               &m.pulled_rows,
                               &m.pulled_bytes,
                               &m.admitted,
                               &m.freed,
                               &m.leases_expired,
                               &m.canaries,
                               &m.canary_failures,
                               &m.connections,
                               &m.accept_pauses,
                               &m.moves,
                               &m.cancelled_moves,
                               &m.moved_bytes,
                               &m.prefix_cache_queries,
                               &m.prefix_cache_hits}) {
    *count = next++;
  }
  for (auto& refused : m.refused_rows) refused = next++;
  for (auto& limited : m.limited) limited = next++;
  m.canary_error = 1.5e-3;
  m.balance = 1.04;
  m.cost_factors = {1.25, 0.5, 2};
  m.filling = 4;
  m.ready = 5;
  m.stepping = 6;
  for (DurationHistogram* seconds : {&m.round_seconds, &m.step_seconds, &m.commit_interval_seconds,
                                     &m.first_commit_seconds, &m.wait_seconds, &m.ingest_seconds}) {
    seconds->observe(3e-5);
    seconds->observe(static_cast<double>(next++));
  }
  for (auto& phase : m.phase_seconds) phase.observe(1e-5 * static_cast<double>(next++));
  m.batch.observe(8);
  m.batch.observe(5000);
  return m;
}

std::vector<FromPool> samples_from_pool() {
  RegisterPool pool;
  pool.name = "pool-a.example_1";
  pool.run = "0123456789abcdef";
  pool.transport = "tcp";
  pool.transport_reason = "auto: no RDMA port for UCX";
  pool.costs = "cpu: built-in figures, NOT measured";
  pool.communicator = "mpi";
  pool.shape = sample_shape();
  pool.pages_per_worker = 800;
  pool.lease_ms = 30'000;
  pool.draining = true;
  pool.last_incarnation = 4'000'000'000;
  pool.workers = {{0, "host0", "tcp://127.0.0.1:4000", "cpu avx512"},
                  {1, "host1", "tcp://[::1]:4001", "cpu avx512"}};
  SequenceInfo filling = sample_sequence();
  filling.id = 7;
  filling.state = SequenceState::kFilling;
  filling.idempotency_key.clear();
  filling.idempotency_secret.clear();
  pool.sequences = {sample_sequence(), filling};
  pool.more = 1;

  Heartbeat heartbeat;
  heartbeat.draining = true;
  heartbeat.workers = {{0, 10, 20, 5, 3, 150, 700, 0.5}, {1, 11, 21, 6, 4, 250, 800, 0.25, true}};
  heartbeat.metrics = sample_metrics();

  PoolReply refused;
  refused.request = 0xffffffffffffffff;
  refused.code = ErrorCode::kPoolFull;
  refused.message = "no room: \"quoted\", \xc3\xa9";
  PoolReply admitted;
  admitted.request = 9;
  admitted.sequence = sample_sequence();
  return {pool,
          heartbeat,
          refused,
          admitted,
          SequenceEnded{12, "lease_expired"},
          Goodbye{},
          MoreSequences{{filling}},
          WorkerJoined{{.rank = 1,
                        .host = "node-7",
                        .address = "tcp://10.0.0.7:7070",
                        .backend = "cpu/AVX2",
                        .threads = 8}}};
}

std::vector<ToPool> samples_to_pool() {
  return {Registered{
              .code = ErrorCode::kAlreadyExists, .message = "pool a is there", .incarnation = 77},
          Admit{5,
                sample_sequence().id,
                {5000,
                 200,
                 SpreadPolicy::kAll,
                 "key",
                 "secret",
                 {512, 16, std::string(16, '\xff') + std::string("0123456789abcd\0f", 16), "s"}}},
          Free{6, 12},
          Query{7, 13},
          SetDraining{8, true},
          DrainWorker{9, 3, true}};
}

SequenceHandle sample_answer() {
  SequenceHandle answer;
  static_cast<SequenceInfo&>(answer) = sample_sequence();
  answer.idempotency_key.clear();
  answer.idempotency_secret.clear();
  answer.pool = std::string("a");
  answer.lease_ms = 30'000;
  answer.addresses = {"tcp://127.0.0.1:4000", "tcp://[::1]:4001"};
  answer.shape = sample_shape();
  return answer;
}

}  // namespace tributary
