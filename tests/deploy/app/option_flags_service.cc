// Flags of worker, control, up and prefill: defaults and bounds.
#include <fmt/format.h>

#include "tests/deploy/app/option_flags.h"

namespace tributary::test {

void add_service_command_flags(const AddFlag& add) {
  using O = const Options&;
  const std::vector<std::string> bad_number = {"x", "", "-1", "1.5", "99999999999"};
  const std::vector<std::string> no_zero = {"x", "", "-1", "1.5", "99999999999", "0"};
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const auto pool = [&](const std::string& command, const auto& worker) {
    const auto text = [&](const std::string& name, std::string WorkerOptions::*field,
                          const std::string& shown) {
      add(command, name, [=](O o) { return worker(o).*field; }, shown, {"a"}, {""});
    };
    const auto whole = [&](const std::string& name, int WorkerOptions::*field,
                           const std::string& shown, const std::vector<std::string>& good,
                           const std::vector<std::string>& bad) {
      add(
          command, name, [=](O o) { return number(worker(o).*field); }, shown, good, bad);
    };
    text("--name", &WorkerOptions::name, "");
    text("--advertise", &WorkerOptions::advertise, "");
    text("--shape", &WorkerOptions::shape, "deepseek-v2-lite");
    text("--backend", &WorkerOptions::backend, "cpu");
    text("--ca", &WorkerOptions::certificate_authority, "");
    add(command, "--model", [=](O o) { return show(worker(o).model); }, "none", {"m"}, {""});
    whole("--port", &WorkerOptions::port, "0", {"0", "65535"}, bad_number);
    whole("--layers", &WorkerOptions::layers, "0", {"0", "1024"}, bad_number);
    whole("--leaf-tokens", &WorkerOptions::leaf_tokens, "2048", {"64"}, no_zero);
    whole("--threads", &WorkerOptions::threads, "0", {"3"}, bad_number);
    whole("--max-batch", &WorkerOptions::max_batch, "256", {"1", "65536"}, no_zero);
    whole("--batch-wait-us", &WorkerOptions::batch_wait_us, "50", {"0", "1000000"}, bad_number);
    whole("--lease-ms", &WorkerOptions::lease_ms, "30000", {"100"}, no_zero);
    whole("--round-timeout-ms", &WorkerOptions::round_timeout_ms, "10000", {"1"}, no_zero);
    whole("--worker-timeout-ms", &WorkerOptions::worker_timeout_ms, "3000", {"1000"}, no_zero);
    whole("--drain-timeout-ms", &WorkerOptions::drain_timeout_ms, "10000", {"0"}, bad_number);
    whole("--canary-interval-ms", &WorkerOptions::canary_interval_ms, "1000", {"0"}, bad_number);
    add(command, "--kv-gib", [=](O o) { return number(worker(o).kv_gib); }, "1", {"0.25"},
        {"x", "", "-1", "0", "nan"});
    add(command, "--costs", [=](O o) { return worker(o).costs; }, "cpu", {"h200", "machine.json"},
        {""});
    add(command, "--max-step-ms", [=](O o) { return number(worker(o).max_step_ms); }, "0", {"50"},
        {"x", "", "-1", "nan"});
    add(command, "--move-bytes-per-s", [=](O o) { return number(worker(o).move_bytes_per_s); },
        "10000000000", {"19", "0"}, {"x", "", "-1", "nan"});
    add(command, "--exchange", [=](O o) { return std::string(exchange_name(worker(o).exchange)); },
        "auto", {"all-to-all"}, {"x", ""});
    add(command, "--merge-order",
        [=](O o) { return std::string(merge_order_name(worker(o).backend_options.merge_order)); },
        "canonical", {"fast"}, {"x", ""});
    add(command, "--attend-kernel",
        [=](O o) {
          return std::string(attend_choice_name(worker(o).backend_options.attend_kernel));
        },
        "auto", {"few"}, {"x", ""});
    add(command, "--rows", [=](O o) { return std::string(row_format_name(worker(o).row_format)); },
        "bf16", {"f32"}, {"x", ""});
    add(command, "--query", [=](O o) { return std::string(dtype_name(worker(o).query_dtype)); },
        "bf16", {"f32"}, {"x", ""});
  };
  const auto control = [&](const std::string& command, const auto& plane) {
    const auto whole = [&](const std::string& name, int ControlOptions::*field,
                           const std::string& shown, const std::vector<std::string>& good) {
      add(
          command, name, [=](O o) { return number(plane(o).*field); }, shown, good, no_zero);
    };
    add(command, "--listen", [=](O o) { return plane(o).listen; }, "127.0.0.1:7300", {"[::1]:0"},
        {""});
    add(command, "--token-file", [=](O o) { return plane(o).token_file; }, "", {"t"}, {""});
    add(command, "--client-token-file", [=](O o) { return plane(o).client_token_file; }, "", {"t"},
        {""});
    add(command, "--pool-token-file", [=](O o) { return plane(o).pool_token_file; }, "", {"t"},
        {""});
    add(command, "--operator-token-file", [=](O o) { return plane(o).operator_token_file; }, "",
        {"t"}, {""});
    add(command, "--health-listen", [=](O o) { return plane(o).health_listen; }, "",
        {"127.0.0.1:0"}, {""});
    whole("--max-connections", &ControlOptions::max_connections, "256", {"1", "65536"});
    whole("--pool-timeout-ms", &ControlOptions::pool_timeout_ms, "1500", {"1000", "60000"});
    whole("--admission-timeout-ms", &ControlOptions::admission_timeout_ms, "10000",
          {"100", "600000"});
    whole("--max-body-bytes", &ControlOptions::max_body_bytes, "65536", {"1024", "16777216"});
  };
  pool("worker", [](O o) -> const WorkerOptions& { return o.worker; });
  add("worker", "--control", [](O o) { return o.worker.control; }, "http://127.0.0.1:7300",
      {"https://c:1"}, {""});
  add("worker", "--token-file", [](O o) { return o.worker.token_file; }, "", {"t"}, {""});
  add("worker", "--listen", [](O o) { return o.worker.listen; }, "127.0.0.1", {"10.0.0.1"}, {""});
  control("control", [](O o) -> const ControlOptions& { return o.control; });
  pool("up", [](O o) -> const WorkerOptions& { return o.up.worker; });
  control("up", [](O o) -> const ControlOptions& { return o.up.control; });
  add("up", "--data-listen", [](O o) { return o.up.worker.listen; }, "127.0.0.1", {"10.0.0.1"},
      {""});
  add(
      "up", "--workers", [=](O o) { return number(o.up.workers); }, "2", {"1", "1024"}, no_zero);
  add(
      "up", "--start-timeout-ms", [=](O o) { return number(o.up.start_timeout_ms); }, "60000",
      {"1"}, no_zero);
  add(
      "prefill", "--senders", [=](O o) { return number(o.prefill.senders); }, "2", {"1", "64"},
      no_zero);
  add("prefill", "--sequence-out", [](O o) { return show(o.prefill.sequence_out); }, "none", {"s"},
      {""});
  add("prefill", "--token-file", [](O o) { return o.prefill.service.token_file; }, "", {"t"}, {""});
  add("prefill", "--ca", [](O o) { return o.prefill.service.certificate_authority; }, "", {"c"},
      {""});
  add("prefill", "--backend", [](O o) { return o.prefill.backend; }, "cpu", {"reference"}, {""});
  add(
      "prefill", "--threads", [=](O o) { return number(o.prefill.threads); }, "0", {"2"},
      bad_number);
  add(
      "prefill", "--call-timeout-ms",
      [=](O o) { return number(o.prefill.service.call_timeout_ms); }, "60000", {"1"}, no_zero);
}

}  // namespace tributary::test
