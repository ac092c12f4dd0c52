// Flags of the processes of a service, and of its example prefill tier.
#include <limits>

#include "deploy/app/flags/flags.h"
#include "deploy/app/flags/shared_flags.h"
#include "deploy/app/flags/subcommands.h"

namespace tributary {
namespace {

constexpr int kMaxMs = std::numeric_limits<int>::max() / 4;

/// Adds the flags that say which model a pool serves and how. `listen` is the name of the flag for
/// its data plane's address.
void add_pool(CLI::App& app, WorkerOptions& o, const std::string& listen) {
  add_text(app, "--name", "NAME", o.name,
           "Name of the pool, unique in its tier (default the leader's host name)");
  add_text(
      app, listen, "ADDRESS", o.listen,
      "Address on which workers take rows and steps, of a closed network; for workers on several "
      "machines their network (10.0.0.0/24) or device (eth0) (default " +
          o.listen + ")");
  add_number(app, "--port", o.port, 0, 65535, "Worker r listens on port N + r", "0, any free one");
  add_text(app, "--advertise", "ADDRESS", o.advertise,
           "Address that clients are told instead of " + listen);
  add_transport(
      app, o.transport,
      "How the data plane speaks: ucx, tcp, or ucx where every worker's machine has RDMA");
  add_text(app, "--client-ca", "FILE", o.client_authority,
           "Clients of the data plane must show a certificate that one of these signed, as PEM "
           "(default none)");
  app.get_option("--client-ca")->needs("--tls-certificate");
  add_switch(app, "--busy-poll", o.busy_poll,
             "Spin while idle: microseconds less latency, a core more for each worker");
  add_switch(app, "--shared-memory", o.shared_memory,
             "Shared memory to clients on this machine: faster, but a client that is killed while "
             "it sends is not noticed before its lease is over");
  add_flag(app, "--model", "PATH", o.model, parse_text,
           "Weights: a folder with config.json and *.safetensors, or a golden file. Without them "
           "the pool serves `attend` alone");
  add_shape(app, o.shape);
  add_number(app, "--layers", o.layers, 0, 1024, "Layers that the pool serves",
             "0, the model's or the file's; 1 of a named shape");
  add_kv_gib(app, o.kv_gib, "Page memory of each worker in GiB");
  add_leaf_tokens(app, o.leaf_tokens);
  add_exchange(app, o.exchange);
  add_costs(app, o.costs);
  add_backend(app, o.backend, o.threads);
  add_backend_options(app, o.backend_options);
  add_rows(app, o.row_format);
  add_query(app, o.query_dtype);
  add_number(app, "--max-batch", o.max_batch, 1, 1 << 16, "Items of a round, at most");
  add_number(app, "--batch-wait-us", o.batch_wait_us, 0, 1'000'000,
             "How long a round waits for further items");
  add_number(app, "--lease-ms", o.lease_ms, 100, kMaxMs,
             "A sequence whose client is silent for so long is freed");
  add_number(app, "--round-timeout-ms", o.round_timeout_ms, 1, kMaxMs,
             "Deadline of a round; a worker that misses it ends the pool");
  add_number(app, "--worker-timeout-ms", o.worker_timeout_ms, 1'000, kMaxMs,
             "A worker that is silent for so long ends the pool");
  add_number(app, "--drain-timeout-ms", o.drain_timeout_ms, 0, kMaxMs,
             "After SIGTERM: how long running sequences may go on");
  add_number(app, "--canary-interval-ms", o.canary_interval_ms, 0, kMaxMs,
             "One result is recomputed in float64 so often; 0 for never");
  add_max_step(app, o.max_step_ms);
  add_number(app, "--move-bytes-per-s", o.move_bytes_per_s, 0.0, 1e12,
             "Leaves of running sequences move to less busy workers where that pays, at this rate "
             "and in a fifth of the time at most; 0 for never, also off a worker that is drained");
}

/// Adds all flags except the token of every role.
void add_control_plane(CLI::App& app, ControlOptions& o) {
  add_text(app, "--listen", "ADDRESS:PORT", o.listen,
           "Where HTTP is served; other addresses than loopback need a token (default " + o.listen +
               ")");
  add_text(app, "--client-token-file", "FILE", o.client_token_file,
           "A token that may admit, ask for and free sequences, and no more (default none)");
  add_text(app, "--pool-token-file", "FILE", o.pool_token_file,
           "One that may register pools, and no more (default none)");
  add_text(app, "--operator-token-file", "FILE", o.operator_token_file,
           "One that may read metrics and the cluster and drain pools, and no more (default none)");
  add_text(app, "--health-listen", "ADDRESS:PORT", o.health_listen,
           "Serve /healthz and /readyz here too, with connections of their own that no crowd at "
           "--listen can take (default none)");
  add_number(app, "--max-connections", o.max_connections, 1, 1 << 16, "Connections at a time");
  add_number(app, "--pool-timeout-ms", o.pool_timeout_ms, kMinPoolTimeoutMs, kMaxPoolTimeoutMs,
             "A pool that is silent for so long is lost");
  add_number(app, "--admission-timeout-ms", o.admission_timeout_ms, kMinAdmissionTimeoutMs,
             kMaxAdmissionTimeoutMs, "How long a pool may take to answer");
  add_number(app, "--max-body-bytes", o.max_body_bytes, 1024, 1 << 24, "Longest body of a request");
}

}  // namespace

CLI::App* add_worker(CLI::App& app, WorkerOptions& o) {
  auto* sub = app.add_subcommand(
      "worker", "Serve a pool: start it with mpirun, each rank is a worker of one pool");
  add_text(*sub, "--control", "URL", o.control,
           "The control plane to register with (default " + o.control + ")");
  add_credentials(*sub, o.token_file, o.certificate_authority);
  add_certificate(*sub, o.tls_certificate, o.tls_key, "encrypts the data plane");
  add_pool(*sub, o, "--listen");
  return sub;
}

CLI::App* add_control(CLI::App& app, ControlOptions& o) {
  auto* sub = app.add_subcommand(
      "control", "The control plane: admission, HTTP interface, status page, metrics");
  add_control_plane(*sub, o);
  add_certificate(*sub, o.tls_certificate, o.tls_key, "serves https");
  add_text(*sub, "--token-file", "FILE", o.token_file,
           "Bearer token for everything (default none: without any token loopback only)");
  return sub;
}

CLI::App* add_up(CLI::App& app, UpOptions& o) {
  auto* sub =
      app.add_subcommand("up", "A whole service on this machine: control plane and one pool");
  add_number(*sub, "--workers", o.workers, 1, 1024, "Workers of the pool, each a process");
  add_number(*sub, "--start-timeout-ms", o.start_timeout_ms, 1, kMaxMs,
             "How long the service may take until it is ready");
  add_control_plane(*sub, o.control);
  add_certificate(*sub, o.control.tls_certificate, o.control.tls_key,
                  "serves https, and encrypts the data plane");
  add_credentials(*sub, o.control.token_file, o.worker.certificate_authority);
  add_pool(*sub, o.worker, "--data-listen");
  return sub;
}

CLI::App* add_top(CLI::App& app, TopOptions& o) {
  auto* sub = app.add_subcommand(
      "top", "A running service at a glance: workers, pages, load, where the time of a step goes");
  add_flag(*sub, "URL", "", o.url, parse_text, "The control plane (default " + o.url + ")");
  add_credentials(*sub, o.token_file, o.certificate_authority);
  add_number(*sub, "--interval-ms", o.interval_ms, 1000, kMaxMs,
             "Time between two pictures, of which rates are taken; pools report twice a second");
  add_switch(*sub, "--once", o.once,
             "Print one picture after one interval, as where stdout is no terminal");
  return sub;
}

CLI::App* add_prefill(CLI::App& app, PrefillOptions& o) {
  auto* sub = app.add_subcommand(
      "prefill", "An example prefill tier: latent rows of a golden file's prompts to a service");
  add_flag(*sub, "FILE", "", o.file, parse_text, "Golden file (.safetensors)")->required();
  add_service(*sub, o.service, "The service, by its control plane's URL");
  sub->get_option("--service")->required();
  add_flag(*sub, "--sequence-out", "FILE", o.sequence_out, parse_text,
           "Keep the sequences, and write what a client needs to decode them, a JSON object a line "
           "(default: free them)");
  add_number(*sub, "--senders", o.senders, 1, 64,
             "Senders, each with a range of every prompt's rows");
  add_backend(*sub, o.backend, o.threads);
  return sub;
}

}  // namespace tributary
