// The options of `tributary worker`, and of its leader.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/model/mla_shape.h"
#include "core/model/row_format.h"
#include "core/plan/plan.h"
#include "core/sequencer/sequencer_options.h"
#include "deploy/runtime/backends.h"
#include "deploy/runtime/shared_options.h"
#include "deploy/service/protocol/credential_options.h"
#include "deploy/service/transport/transport_choice.h"
#include "deploy/service/worker/given_head_weights.h"

namespace tributary {

struct LeaderOptions {
  int max_batch = 256;
  /// How long a round waits for further items: long enough that clients which step together share
  /// one, and below a tenth of the shortest round over TCP.
  int batch_wait_us = 50;
  int lease_ms = 30'000;
  int drain_timeout_ms = 10'000;
  int canary_interval_ms = 1'000;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    v(max_batch, "--max-batch", {1, 1 << 16}, "Items of a round, at most");
    v(lease_ms, "--lease-ms", {100, kMaxOptionMs},
      "A sequence whose client is silent for so long is freed");
    v(drain_timeout_ms, "--drain-timeout-ms", {0, kMaxOptionMs},
      "After SIGTERM: how long running sequences may go on");
    v(canary_interval_ms, "--canary-interval-ms", {0, kMaxOptionMs},
      "One result is recomputed in float64 so often; 0 for never");
  }
};

/// How a worker finds the others when no launcher has started them together.
struct MeetingOptions {
  int slots = 0;  // 0: a launcher has, and knows who is who
  int slot = 0;
  std::string leader;
  std::string secret_file;

  /// Whether the worker is started so. Throws kInvalidArgument where some of it is missing.
  [[nodiscard]] bool given() const {
    const bool all = slots > 0 && !leader.empty() && !secret_file.empty();
    const bool any = slots > 0 || slot > 0 || !leader.empty() || !secret_file.empty();
    if (any && !all) {
      fail(ErrorCode::kInvalidArgument,
           "--slots, --leader and --pool-secret-file belong together, and --slot goes with them");
    }
    return all;
  }

  template <class Visitor>
  void for_each_option(Visitor& visitor) {
    auto v = visitor.in_group("A pool without mpirun, its workers started one by one");
    v(slots, "--slots", {1, 1024}, "Workers of the pool",
      {.shown_default = "those that mpirun starts"});
    v(slot, "--slot", {0, 1023}, "Which of them this one is; 0 leads");
    v(leader, "--leader", "HOST:PORT",
      "Where worker 0 is found by the others; there it listens on that port",
      {.shown_default = "none"});
    v(secret_file, "--pool-secret-file", "FILE",
      "What the workers prove to each other: 16 characters at least, the same for all",
      {.shown_default = "none"});
  }
};

struct WorkerOptions {
  std::string control = "http://127.0.0.1:7300";
  std::string token_file;
  std::string certificate_authority;
  std::string name;
  MeetingOptions meeting;
  std::string listen = "127.0.0.1";  // see listen_address.h
  int port = 0;
  std::string advertise;
  TransportChoice transport = TransportChoice::kAuto;
  std::string tls_certificate, tls_key, client_authority;
  bool busy_poll = false;
  bool shared_memory = false;
  std::optional<std::filesystem::path> model;
  std::string shape = "deepseek-v2-lite";
  std::optional<MlaShape> given_shape;  // instead of `shape`, as if from a file
  int layers = 0;
  double kv_gib = 1;
  int leaf_tokens = 0;
  Exchange exchange = Exchange::kAuto;
  std::string costs = "cpu";  // rank 0 reads it
  std::string backend = "cpu";
  int threads = 0;
  BackendOptions backend_options;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  int topk = -1;
  double latent_norm_eps = 1e-6;
  /// Used without `model`. Each worker copies them to its own memory while the pool starts; the
  /// caller keeps them until the pool serves.
  std::weak_ptr<const GivenHeadWeights> given_head_weights;

  /// How long a worker waits for the others to load; each reads the model at its own pace.
  int start_timeout_ms = 30 * 60'000;
  int failure_timeout_ms = 10'000;
  LeaderOptions leader;
  SequencerOptions sequencer;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    auto door = v.in_group("Control plane and certificates");
    door(control, "--control", "URL", "The control plane to register with");
    visit_credentials(door, token_file, certificate_authority);
    visit_certificate(door, tls_certificate, tls_key, "encrypts the data plane");
    meeting.for_each_option(v);
    for_each_pool_option(v, "--listen");
  }

  /// Visits what the pool serves and how, without who may reach it. `listen_name` is the flag of
  /// its data plane's address: `up` has another --listen.
  template <class Visitor>
  void for_each_pool_option(Visitor& visitor, std::string_view listen_name) {
    auto v = visitor.in_group("Data plane");
    v(name, "--name", "NAME", "Name of the pool, unique in its tier",
      {.shown_default = "the leader's host name"});
    v(listen, listen_name, "ADDRESS",
      "Address on which workers take rows and steps, of a closed network; for workers on several "
      "machines their network (10.0.0.0/24) or device (eth0)");
    v(port, "--port", {0, 65535}, "Worker r listens on port N + r",
      {.shown_default = "0, any free one"});
    v(advertise, "--advertise", "ADDRESS",
      fmt::format("Address that clients are told instead of {}", listen_name));
    v(transport, "--transport", "auto|ucx|tcp",
      "How the data plane speaks: ucx, tcp, or ucx where every worker's machine has RDMA");
    v(client_authority, "--client-ca", "FILE",
      "Clients of the data plane must show a certificate that one of these signed, as PEM",
      {.shown_default = "none", .needs = "--tls-certificate"});
    v(busy_poll, "--busy-poll",
      "Spin while idle: microseconds less latency, a core more for each worker");
    v(shared_memory, "--shared-memory",
      "Shared memory to clients on this machine: faster, but a client that is killed while it "
      "sends is not noticed before its lease is over");
    v = visitor.in_group("Model and memory");
    v(model, "--model", "PATH",
      "Weights: a folder with config.json and *.safetensors, or a golden file. Without them the "
      "pool serves `attend` alone");
    v(latent_norm_eps, "--latent-norm-eps", {1e-12, 0.1},
      "Epsilon of a model's norms of latents: 1e-6 in DeepSeek's code and transformers; a model "
      "that was trained with its config's rms_norm_eps needs that one");
    visit_shape(v, shape);
    v(layers, "--layers", {0, 1024}, "Layers that the pool serves",
      {.shown_default = "0, the model's or the file's; 1 of a named shape"});
    visit_kv_gib(v, kv_gib, "Page memory of each worker in GiB");
    visit_pool_leaf_tokens(v, leaf_tokens);
    visit_rows(v, row_format);
    visit_query(v, query_dtype);
    visit_topk(v, topk);
    v = visitor.in_group("Kernels and placement");
    visit_backend(v, backend, threads);
    backend_options.for_each_option(v);
    visit_exchange(v, exchange);
    visit_costs(v, costs);
    v = visitor.in_group("Rounds and deadlines");
    v(failure_timeout_ms, "--failure-timeout-ms", {1'000, kMaxOptionMs},
      "A worker that is silent or holds a round up for so long is lost; worker 0 ends the pool");
    leader.for_each_option(v);
    sequencer.for_each_option(
        v,
        "Leaves of running sequences move to less busy workers where that pays, at this rate and "
        "in a fifth of the time at most; 0 for never, also off a worker that is drained");
  }
};

}  // namespace tributary
