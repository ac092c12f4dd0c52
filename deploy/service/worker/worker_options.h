// The options of `tributary worker`.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/base/dtype.h"
#include "core/model/mla_shape.h"
#include "core/model/row_format.h"
#include "core/plan/plan.h"
#include "core/rebalance/mover.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/transport/transport_choice.h"
#include "deploy/service/worker/given_head_weights.h"

namespace tributary {

struct WorkerOptions {
  std::string control = "http://127.0.0.1:7300";  // the control plane
  std::string token_file;                         // bearer token for it; empty: none
  std::string certificate_authority;              // PEM file for https; empty: the system's
  std::string name;                               // of the pool; empty: the leader's host name

  std::string listen = "127.0.0.1";  // of the data plane: see listen_address.h
  int port = 0;                      // rank r listens on port + r; 0: any
  std::string advertise;             // address that clients are told; empty: `listen`
  TransportChoice transport = TransportChoice::kAuto;
  /// PEM files; the first two make the data plane TLS, trusting `certificate_authority`, and the
  /// third asks clients for certificates.
  std::string tls_certificate, tls_key, client_authority;
  bool busy_poll = false;
  bool shared_memory = false;

  /// A golden file, or a folder with config.json and *.safetensors: shape and weights. Without it
  /// the pool has `shape`, and only the weights that the caller gives.
  std::optional<std::filesystem::path> model;
  std::string shape = "deepseek-v2-lite";  // a preset's name or a file
  std::optional<MlaShape> given_shape;     // instead of `shape`, as if from a file
  int layers = 0;                          // 0: the model's or the file's, 1 of a preset
  double kv_gib = 1;
  int leaf_tokens = 2048;
  Exchange exchange = Exchange::kAuto;
  /// The constants for placement and exchange: a machine's name, see core/cost/built_in_costs.h, or
  /// a file of `tributary bench --json`. Rank 0 reads it.
  std::string costs = "cpu";
  std::string backend = "cpu";
  int threads = 0;  // 0: this worker's share of the cores
  BackendOptions backend_options;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  /// Used without `model`. Each worker copies them to its own memory while the pool starts; the
  /// caller keeps them until the pool serves.
  std::weak_ptr<const GivenHeadWeights> given_head_weights;

  int max_batch = 256;     // items of a round
  int batch_wait_us = 50;  // how long a round waits for items of sequences in open steps
  int lease_ms = 30'000;   // a sequence whose client is silent for this long is freed
  /// How long a worker waits for the others to load; each reads the model at its own pace.
  int start_timeout_ms = 30 * 60'000;
  int round_timeout_ms = 10'000;   // deadline of a round; a worker that misses it ends the pool
  int worker_timeout_ms = 3'000;   // a worker that is silent for this long ends the pool
  int drain_timeout_ms = 10'000;   // SIGTERM: how long running sequences may go on
  int canary_interval_ms = 1'000;  // one item is recomputed in float64 at this interval; 0: never
  double max_step_ms = 0;          // that placement goes by; 0: none
  /// Leaves move between workers at this rate at most; 0: never.
  double move_bytes_per_s = kDefaultMoveBytesPerS;
};

}  // namespace tributary
