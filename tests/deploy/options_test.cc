// Every flag: default, bounds, bad values; and what a user reads when something is wrong.
#include "deploy/cli/options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace tributary {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

ParseResult parse(std::vector<std::string> words) {
  words.insert(words.begin(), "tributary");
  std::vector<const char*> argv;
  argv.reserve(words.size());
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

/// The shortest valid call of a command.
std::vector<std::string> minimal(const std::string& command) {
  if (command == "verify") return {command, "a.safetensors"};
  return {command};
}

std::string show(const std::optional<std::filesystem::path>& path) {
  return path ? path->string() : "none";
}

struct Flag {
  std::string command;
  std::string name;
  std::function<std::string(const Options&)> get;
  std::string shown_default;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

std::vector<Flag> flags() {
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
  std::vector<Flag> all;
  const auto add = [&](const std::string& command, const std::string& name,
                       std::function<std::string(O)> get, const std::string& shown_default,
                       const std::vector<std::string>& good, const std::vector<std::string>& bad) {
    all.push_back({command, name, std::move(get), shown_default, good, bad});
  };
  const auto number = [](auto value) { return fmt::format("{}", value); };

  add(
      "verify", "--workers", [=](O o) { return number(o.verify.workers); }, "0", {"1", "1024"},
      with({"0", "1025"}));
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
      "replay", "--rows", [](O o) { return std::string(dtype_name(o.replay.row_dtype)); }, "bf16",
      {"bf16", "f32"}, bad_type);
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

  add("simulate", "--requests", [=](O o) { return number(o.simulate.requests); }, "0", {"10"},
      {"x", "-1"});
  add("simulate", "--seed", [=](O o) { return number(o.simulate.seed); }, "1", {"7"}, {"-1"});
  add("simulate", "--json", [](O o) { return show(o.simulate.json); }, "none", {"r.json"}, {""});
  add(
      "simulate", "--workers", [=](O o) { return number(o.simulate.workers); }, "64", {"1", "4096"},
      with({"0", "4097"}));
  add(
      "simulate", "--running", [=](O o) { return number(o.simulate.running); }, "256",
      {"1", "1048576"}, with({"0", "1048577"}));
  add("simulate", "--spread",
      [](O o) { return std::string(spread_policy_name(o.simulate.spread)); }, "auto", {"single"},
      {"x"});
  add("simulate", "--exchange", [](O o) { return std::string(exchange_name(o.simulate.exchange)); },
      "auto", {"all-gather"}, {"x"});
  add(
      "simulate", "--leaf-tokens", [=](O o) { return number(o.simulate.leaf_tokens); }, "2048",
      {"64"}, with({"100"}));
  add("simulate", "--shape", [](O o) { return o.simulate.shape; }, "deepseek-v3", {"kimi-k2"},
      {""});
  add(
      "simulate", "--kv-gib", [=](O o) { return number(o.simulate.kv_gib); }, "64", {"0.5"},
      unreal_with({"0"}));
  return all;
}

TEST(Options, EveryFlagHasItsDefault) {
  for (const Flag& flag : flags()) {
    SCOPED_TRACE(flag.command + " " + flag.name);
    const ParseResult result = parse(minimal(flag.command));
    ASSERT_FALSE(result.exit) << result.text;
    EXPECT_EQ(flag.get(result.options), flag.shown_default);
  }
}

TEST(Options, EveryFlagTakesItsValuesUpToTheBounds) {
  for (const Flag& flag : flags()) {
    for (const std::string& value : flag.good) {
      for (const bool with_equals : {false, true}) {
        SCOPED_TRACE(flag.command + " " + flag.name + " " + value);
        auto words = minimal(flag.command);
        if (with_equals) {
          words.push_back(flag.name + "=" + value);
        } else {
          words.insert(words.end(), {flag.name, value});
        }
        const ParseResult result = parse(words);
        ASSERT_FALSE(result.exit) << result.text;
        EXPECT_EQ(flag.get(result.options), value);
      }
    }
  }
}

TEST(Options, EveryFlagRefusesBadValuesInOneLineThatNamesIt) {
  for (const Flag& flag : flags()) {
    for (const std::string& value : flag.bad) {
      SCOPED_TRACE(flag.command + " " + flag.name + " '" + value + "'");
      auto words = minimal(flag.command);
      words.insert(words.end(), {flag.name, value});
      const ParseResult result = parse(words);
      EXPECT_TRUE(result.exit);
      EXPECT_EQ(result.exit_status, 2);
      EXPECT_THAT(result.text, AllOf(StartsWith(flag.name), HasSubstr(value), Not(HasSubstr("\n")),
                                     HasSubstr("tributary " + flag.command + " --help")));
    }
  }
}

TEST(Options, EveryFlagNeedsExactlyOneValue) {
  for (const Flag& flag : flags()) {
    SCOPED_TRACE(flag.command + " " + flag.name);
    auto words = minimal(flag.command);
    words.push_back(flag.name);
    EXPECT_THAT(parse(words).text, StartsWith(flag.name + " needs a value"));
    words.insert(words.end(), {flag.good[0], flag.name, flag.good[0]});
    const ParseResult twice = parse(words);
    EXPECT_EQ(twice.exit_status, 2);
    EXPECT_THAT(twice.text, StartsWith(flag.name + " is given more than once"));
  }
}

TEST(Options, HostileValuesAreEscapedAndCut) {
  const ParseResult result = parse({"replay", "--layers", "\033[2J\n" + std::string(5000, 'x')});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.text, AllOf(Not(HasSubstr("\033")), Not(HasSubstr("\n"))));
  EXPECT_LT(result.text.size(), 300U);
  EXPECT_THAT(parse({"\033[2J\n"}).text, AllOf(Not(HasSubstr("\033")), Not(HasSubstr("\n"))));
  EXPECT_THAT(parse({"info", "\033[2J\n"}).text,
              AllOf(Not(HasSubstr("\033")), Not(HasSubstr("\n"))));
}

TEST(Options, FilesAndCommands) {
  const ParseResult verify = parse({"verify", "a", "--workers", "2", "b"});
  ASSERT_FALSE(verify.exit) << verify.text;
  EXPECT_EQ(verify.options.command, Command::kVerify);
  EXPECT_THAT(verify.options.verify.files, testing::ElementsAre("a", "b"));

  EXPECT_EQ(parse({"replay"}).options.command, Command::kReplay);
  EXPECT_EQ(show(parse({"replay"}).options.replay.trace), "none");
  EXPECT_EQ(show(parse({"replay", "t.jsonl"}).options.replay.trace), "t.jsonl");
  EXPECT_EQ(show(parse({"replay", "--", "--t"}).options.replay.trace), "--t");
  EXPECT_EQ(parse({"simulate", "t"}).options.command, Command::kSimulate);
  EXPECT_EQ(show(parse({"simulate", "t"}).options.simulate.trace), "t");
  EXPECT_EQ(parse({"info"}).options.command, Command::kInfo);
}

TEST(Options, WhatCannotBeUnderstoodIsNamed) {
  const auto expect_refusal = [](const std::vector<std::string>& words, const std::string& text) {
    const ParseResult result = parse(words);
    SCOPED_TRACE(result.text);
    EXPECT_TRUE(result.exit);
    EXPECT_EQ(result.exit_status, 2);
    EXPECT_THAT(result.text, AllOf(HasSubstr(text), Not(HasSubstr("\n"))));
  };
  expect_refusal({}, "no command is given; there are verify, replay, simulate and info");
  expect_refusal({""}, "no command is given");
  expect_refusal({"foo"}, "no command 'foo'; there are verify, replay, simulate and info");
  expect_refusal({"--foo"}, "no command '--foo'");
  expect_refusal({"--workers", "2", "replay"}, "no command '--workers'");
  expect_refusal({"replay", "--foo"}, "unknown argument '--foo'");
  expect_refusal({"replay", "--work", "2"}, "unknown argument '--work'");
  expect_refusal({"replay", "a", "b"}, "unknown argument 'b'");
  expect_refusal({"replay", "a", "simulate"}, "'simulate'");
  expect_refusal({"info", "x"}, "unknown argument 'x'");
  expect_refusal({"verify"}, "FILE is required");
  expect_refusal({"verify", "a", "--running", "3"}, "'--running'");
}

TEST(Options, VersionAndHelpAreNotErrors) {
  const ParseResult version = parse({"--version"});
  EXPECT_TRUE(version.exit);
  EXPECT_EQ(version.exit_status, 0);
  EXPECT_THAT(version.text, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+\n"));

  for (const char* flag : {"--help", "-h"}) {
    const ParseResult help = parse({flag});
    EXPECT_TRUE(help.exit);
    EXPECT_EQ(help.exit_status, 0);
    for (const char* command : {"verify", "replay", "simulate", "info", "Exit status"}) {
      EXPECT_THAT(help.text, HasSubstr(command));
    }
  }
}

TEST(Options, HelpOfACommandShowsEveryFlagWithItsDefaultInLinesOf100Columns) {
  for (const std::string command : {"verify", "replay", "simulate", "info"}) {
    const ParseResult help = parse({command, "--help"});
    SCOPED_TRACE(help.text);
    EXPECT_TRUE(help.exit);
    EXPECT_EQ(help.exit_status, 0);
    EXPECT_THAT(help.text, HasSubstr("Usage: tributary " + command));
    // The types of the parser's own help mean nothing to a user.
    EXPECT_THAT(help.text, AllOf(Not(HasSubstr("INT")), Not(HasSubstr("TEXT")),
                                 Not(HasSubstr("FLOAT")), Not(HasSubstr(" in ["))));
    std::istringstream lines(help.text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
    for (const Flag& flag : flags()) {
      if (flag.command != command) continue;
      const std::size_t begin = help.text.find("\n  " + flag.name + " ");
      ASSERT_NE(begin, std::string::npos) << flag.name;
      const std::string entry =
          help.text.substr(begin, help.text.find("\n  --", begin + 1) - begin);
      if (flag.name == "--json") continue;
      // Of a pool's workers the default is one thread.
      const std::string shown =
          flag.name == "--workers" && command != "simulate" ? "1" : flag.shown_default;
      EXPECT_THAT(entry, testing::ContainsRegex("default[ \n]+" + shown));
    }
  }
}

}  // namespace
}  // namespace tributary
