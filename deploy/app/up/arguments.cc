#include "deploy/app/up/arguments.h"

#include <fmt/format.h>

#include <string_view>
#include <type_traits>

namespace tributary {
namespace {

class CommandLine {
 public:
  explicit CommandLine(std::string_view command) : words_{std::string(command)} {}

  /// Leaves out a flag with empty text, because its default is empty.
  void text(std::string_view flag, std::string_view value) {
    if (value.empty()) return;
    words_.emplace_back(flag);
    words_.emplace_back(value);
  }
  template <typename T>
  void number(std::string_view flag, T value) {
    text(flag, fmt::format("{}", value));
  }
  void given(std::string_view flag, bool on) {
    if (on) words_.emplace_back(flag);
  }
  [[nodiscard]] std::vector<std::string> words() const { return words_; }

 private:
  std::vector<std::string> words_;
};

}  // namespace

std::vector<std::string> command_line(const ControlOptions& o) {
  CommandLine line("control");
  line.text("--listen", o.listen);
  line.text("--token-file", o.token_file);
  line.text("--client-token-file", o.client_token_file);
  line.text("--pool-token-file", o.pool_token_file);
  line.text("--operator-token-file", o.operator_token_file);
  line.text("--tls-certificate", o.tls_certificate);
  line.text("--tls-key", o.tls_key);
  line.text("--health-listen", o.health_listen);
  line.number("--max-connections", o.max_connections);
  line.number("--pool-timeout-ms", o.pool_timeout_ms);
  line.number("--admission-timeout-ms", o.admission_timeout_ms);
  line.number("--max-body-bytes", o.max_body_bytes);
  return line.words();
}

std::vector<std::string> command_line(const WorkerOptions& o) {
  CommandLine line("worker");
  line.text("--control", o.control);
  line.text("--token-file", o.token_file);
  line.text("--ca", o.certificate_authority);
  line.text("--tls-certificate", o.tls_certificate);
  line.text("--tls-key", o.tls_key);
  line.text("--client-ca", o.client_authority);
  line.text("--name", o.name);
  line.text("--listen", o.listen);
  line.number("--port", o.port);
  line.text("--advertise", o.advertise);
  line.text("--transport", transport_choice_name(o.transport));
  line.given("--busy-poll", o.busy_poll);
  line.given("--shared-memory", o.shared_memory);
  if (o.model) line.text("--model", o.model->string());
  line.text("--shape", o.shape);
  line.number("--layers", o.layers);
  line.number("--kv-gib", o.kv_gib);
  line.number("--leaf-tokens", o.leaf_tokens);
  line.text("--exchange", exchange_name(o.exchange));
  line.text("--costs", o.costs);
  line.text("--backend", o.backend);
  line.number("--threads", o.threads);
  line.text("--merge-order", merge_order_name(o.backend_options.merge_order));
  line.given("--disable-cuda-graph", o.backend_options.disable_cuda_graph);
  line.text("--attend-kernel", attend_choice_name(o.backend_options.attend_kernel));
  line.text("--rows", row_format_name(o.row_format));
  line.text("--query", dtype_name(o.query_dtype));
  line.number("--max-batch", o.max_batch);
  line.number("--batch-wait-us", o.batch_wait_us);
  line.number("--lease-ms", o.lease_ms);
  line.number("--round-timeout-ms", o.round_timeout_ms);
  line.number("--worker-timeout-ms", o.worker_timeout_ms);
  line.number("--drain-timeout-ms", o.drain_timeout_ms);
  line.number("--canary-interval-ms", o.canary_interval_ms);
  line.number("--max-step-ms", o.max_step_ms);
  line.number("--move-bytes-per-s", o.move_bytes_per_s);
  return line.words();
}

}  // namespace tributary
