#include "tests/deploy/app/option_flags.h"

#include <fmt/format.h>

#include <utility>

namespace tributary::test {

std::string show(const std::optional<std::filesystem::path>& path) {
  return path ? path->string() : "none";
}

ParseResult parse(std::vector<std::string> words) {
  words.insert(words.begin(), "tributary");
  std::vector<const char*> argv;
  argv.reserve(words.size());
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

void add_pool_command_flags(const AddFlag& add) {
  using O = const Options&;
  const std::vector<std::string> junk = {"x", "", "-1", "1.5", "3 ", "0x10", "1e3", "99999999999"};
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> bad = junk;
    bad.insert(bad.end(), more);
    return bad;
  };
  const std::vector<std::string> unreal = {"x", "", "-1", "nan", "-nan", "inf", "1e999", "1,5"};
  const auto unreal_with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> bad = unreal;
    bad.insert(bad.end(), more);
    return bad;
  };
  const std::vector<std::string> bad_type = {"", "f16", "BF16", "float32"};
  const std::string max_u64 = "18446744073709551615";
  const auto number = [](auto value) { return fmt::format("{}", value); };

  add(
      "verify", "--workers", [=](O o) { return number(o.verify.workers); }, "0", {"1", "1024"},
      with({"0", "1025"}));
  add("verify", "--listen", [](O o) { return o.verify.listen; }, "", {"10.0.0.0/24"}, {""});
  add("verify", "--advertise", [](O o) { return o.verify.advertise; }, "", {"10.0.0.1"}, {""});
  add("verify", "--merge-order",
      [](O o) { return std::string(merge_order_name(o.verify.backend_options.merge_order)); },
      "canonical", {"canonical", "fast"}, {"", "x", "Fast"});
  add("verify", "--attend-kernel",
      [](O o) { return std::string(attend_choice_name(o.verify.backend_options.attend_kernel)); },
      "auto", {"generic", "few", "many1", "many2"}, {"", "x", "Few", "many"});
  add("verify", "--backend", [](O o) { return o.verify.backend; }, "cpu", {"reference"}, {""});
  add(
      "verify", "--threads", [=](O o) { return number(o.verify.threads); }, "0", {"0", "1024"},
      with({"1025"}));
  add(
      "verify", "--query", [](O o) { return std::string(dtype_name(o.verify.query_dtype)); }, "f32",
      {"bf16", "f32"}, bad_type);
  add(
      "verify", "--leaf-tokens", [=](O o) { return number(o.verify.leaf_tokens); }, "64",
      {"64", "2048", "1048576"}, with({"0", "32", "63", "65", "96", "2097152"}));

  add("replay", "--requests", [=](O o) { return number(o.replay.requests); }, "64",
      {"0", "1", "1099511627776"}, {"x", "", "-1", "1.5", "1099511627777", max_u64 + "0"});
  add("replay", "--seed", [=](O o) { return number(o.replay.seed); }, "1", {"0", max_u64},
      {"x", "", "-1", "1.5", "18446744073709551616"});
  add("replay", "--json", [](O o) { return show(o.replay.json); }, "none", {"r.json"}, {""});
  add(
      "replay", "--workers", [=](O o) { return number(o.replay.workers); }, "0", {"1", "1024"},
      with({"0", "1025"}));
  add("replay", "--listen", [](O o) { return o.replay.listen; }, "", {"10.0.0.0/24"}, {""});
  add("replay", "--advertise", [](O o) { return o.replay.advertise; }, "", {"10.0.0.1"}, {""});
  add("replay", "--merge-order",
      [](O o) { return std::string(merge_order_name(o.replay.backend_options.merge_order)); },
      "canonical", {"fast"}, {"", "x"});
  add("replay", "--attend-kernel",
      [](O o) { return std::string(attend_choice_name(o.replay.backend_options.attend_kernel)); },
      "auto", {"many1"}, {"", "x"});
  add("replay", "--backend", [](O o) { return o.replay.backend; }, "cpu", {"cpu/AVX2"}, {""});
  add(
      "replay", "--threads", [=](O o) { return number(o.replay.threads); }, "0", {"1"},
      with({"1025"}));
  add("replay", "--spread", [](O o) { return std::string(spread_policy_name(o.replay.spread)); },
      "auto", {"auto", "single", "all"}, {"", "x", "Single", "none"});
  add("replay", "--exchange", [](O o) { return std::string(exchange_name(o.replay.exchange)); },
      "auto", {"auto", "all-gather", "all-to-all"}, {"", "x", "allgather"});
  add(
      "replay", "--leaf-tokens", [=](O o) { return number(o.replay.leaf_tokens); }, "2048",
      {"64", "128"}, with({"0", "100"}));
  add("replay", "--costs", [](O o) { return o.replay.costs; }, "cpu", {"h200", "m.json"}, {""});
  add("replay", "--shape", [](O o) { return o.replay.shape; }, "deepseek-v2-lite", {"kimi-k2"},
      {""});
  add(
      "replay", "--layers", [=](O o) { return number(o.replay.layers); }, "1", {"1", "1024"},
      with({"0", "1025"}));
  add(
      "replay", "--heads", [=](O o) { return number(o.replay.heads); }, "0", {"0", "1", "1024"},
      with({"1025"}));
  add(
      "replay", "--length-scale", [=](O o) { return number(o.replay.length_scale); }, "1",
      {"0.5", "1e-06", "1000"}, unreal_with({"0", "1e-7", "1001"}));
  add(
      "replay", "--kv-gib", [=](O o) { return number(o.replay.kv_gib); }, "1",
      {"0.25", "1e-06", "100000"}, unreal_with({"0", "1e6"}));
  add(
      "replay", "--max-batch", [=](O o) { return number(o.replay.max_batch); }, "64",
      {"1", "1048576"}, with({"0", "1048577"}));
  add(
      "replay", "--tokens-per-step", [=](O o) { return number(o.replay.tokens_per_step); }, "1",
      {"1", "16"}, with({"0", "17"}));
  add(
      "replay", "--rows", [](O o) { return std::string(row_format_name(o.replay.row_format)); },
      "bf16", {"bf16", "f32"}, bad_type);
  add(
      "replay", "--query", [](O o) { return std::string(dtype_name(o.replay.query_dtype)); },
      "bf16", {"bf16", "f32"}, bad_type);
  add(
      "replay", "--speed", [=](O o) { return number(o.replay.speed); }, "0", {"0", "0.5", "1000"},
      unreal_with({"1e10"}));
  add(
      "replay", "--canary-rate", [=](O o) { return number(o.replay.canary_rate); }, "0.001",
      {"0", "1", "0.5"}, unreal_with({"1.01"}));
  add(
      "replay", "--round-timeout-ms", [=](O o) { return number(o.replay.round_timeout_ms); },
      "60000", {"1", "1000"}, with({"0"}));

  add_simulate_flags(add);
}

std::vector<Flag> flags() {
  std::vector<Flag> all;
  const AddFlag add = [&](const std::string& command, const std::string& name,
                          std::function<std::string(const Options&)> get,
                          const std::string& shown_default, const std::vector<std::string>& good,
                          const std::vector<std::string>& bad) {
    all.push_back({command, name, std::move(get), shown_default, good, bad});
  };
  add_pool_command_flags(add);
  add_service_command_flags(add);
  return all;
}

}  // namespace tributary::test
