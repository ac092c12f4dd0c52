// The flags of simulate: default, bounds, good and bad values.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/deploy/app/option_flags.h"

namespace tributary::test {

void add_simulate_flags(const AddFlag& add) {
  using O = const Options&;
  using Values = std::vector<std::string>;
  const Values no_number = {"x", "", "-1", "1.5", "99999999999999"};
  const Values no_real = {"x", "", "-1", "nan", "inf", "1e999"};
  const auto number = [&](const std::string& name, auto field, const std::string& shown,
                          const Values& good, Values bad) {
    bad.insert(bad.end(), no_number.begin(), no_number.end());
    add(
        "simulate", name, [=](O o) { return fmt::format("{}", o.simulate.*field); }, shown, good,
        bad);
  };
  const auto real = [&](const std::string& name, double SimulateOptions::*field,
                        const std::string& shown, const Values& good, Values bad) {
    bad.insert(bad.end(), no_real.begin(), no_real.end());
    add(
        "simulate", name, [=](O o) { return fmt::format("{}", o.simulate.*field); }, shown, good,
        bad);
  };
  using S = SimulateOptions;
  number("--requests", &S::requests, "0", {"10"}, {});
  add("simulate", "--seed", [=](O o) { return fmt::format("{}", o.simulate.seed); }, "1", {"7"},
      {"-1"});
  add("simulate", "--json", [](O o) { return show(o.simulate.json); }, "none", {"r.json"}, {""});
  add("simulate", "--svg", [](O o) { return show(o.simulate.svg); }, "none", {"r.svg"}, {""});
  real("--length-scale", &S::length_scale, "1", {"0.5", "1000"}, {"0", "1001"});
  number("--pools", &S::pools, "1", {"1", "65536"}, {"0", "65537"});
  number("--workers", &S::workers, "8", {"1", "1024"}, {"0", "1025"});
  number("--workers-per-node", &S::workers_per_node, "8", {"1", "1024"}, {"0", "1025"});
  real("--kv-gib", &S::kv_gib, "100", {"0.5"}, {"0"});
  add("simulate", "--costs", [](O o) { return o.simulate.costs; }, "h200", {"cpu", "m.json"}, {""});
  add("simulate", "--shape", [](O o) { return o.simulate.shape; }, "deepseek-v3", {"kimi-k2"},
      {""});
  add("simulate", "--exchange", [](O o) { return std::string(exchange_name(o.simulate.exchange)); },
      "auto", {"all-gather"}, {"x"});
  number("--leaf-tokens", &S::leaf_tokens, "2048", {"64"}, {"100"});
  real("--max-step-ms", &S::max_step_ms, "0", {"0", "50"}, {"1e7"});
  real("--move-bytes-per-s", &S::move_bytes_per_s, "10000000000", {"0", "1000000"}, {"1e13"});
  real("--other-ms", &S::other_ms, "0", {"0", "12.5"}, {"1000001"});
  add(
      "simulate", "--prefill-servers",
      [](O o) { return fmt::format("{}", o.simulate.prefill.servers); }, "0", {"0", "64"},
      no_number);
  add("simulate", "--prefill-tokens-s",
      [](O o) { return fmt::format("{}", o.simulate.prefill.tokens_per_second); }, "10000",
      {"0.5", "20000"}, {"x", "", "0", "-1", "nan"});
  add("simulate", "--spread", [](O o) { return flag_text(o.simulate.spread); }, "single,all,auto",
      {"single", "auto,all"}, {"x", ""});
  add("simulate", "--rate", [](O o) { return flag_text(o.simulate.rates); }, "", {"3.5", "10,20.5"},
      {"x", "", "0", "-1", "nan"});
  number("--running", &S::running, "0", {"0", "256"}, {});
  real("--tpot-ms", &S::tpot_ms, "50", {"20", "0.5"}, {"0"});
  real("--wait-ms", &S::wait_ms, "1000", {"0", "20"}, {});
  real("--warmup-s", &S::warmup_s, "30", {"0", "2.5"}, {});
  real("--measure-s", &S::measure_s, "60", {"2.5"}, {"0"});
  number("--max-waiting", &S::max_waiting, "4096", {"1", "65536"}, {"0"});
  number("--check-every", &S::check_every, "500", {"0", "100000"}, {});
}

}  // namespace tributary::test
