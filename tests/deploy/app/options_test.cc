// Every flag: default, bounds, bad values; and what a user reads when something is wrong.
#include "deploy/app/flags/options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/app/up/arguments.h"
#include "tests/deploy/app/option_flags.h"

namespace tributary {
namespace {

using test::Flag;
using test::flags;
using test::parse;
using test::show;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// The shortest valid call of a command.
std::vector<std::string> minimal(const std::string& command) {
  if (command == "verify") return {command, "a.safetensors"};
  if (command == "prefill") return {command, "a.safetensors", "--service", "http://s:1"};
  return {command};
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
  expect_refusal({}, "no command is given; there are up, control, worker, prefill, verify, ");
  expect_refusal({""}, "no command is given");
  expect_refusal({"foo"}, "no command 'foo'; there are up, control, worker, prefill, verify, ");
  expect_refusal({"--foo"}, "no command '--foo'");
  expect_refusal({"--workers", "2", "replay"}, "no command '--workers'");
  expect_refusal({"replay", "--foo"}, "unknown argument '--foo'");
  expect_refusal({"replay", "--work", "2"}, "unknown argument '--work'");
  expect_refusal({"replay", "a", "b"}, "unknown argument 'b'");
  expect_refusal({"replay", "a", "simulate"}, "'simulate'");
  expect_refusal({"info", "x"}, "unknown argument 'x'");
  expect_refusal({"verify"}, "FILE is required");
  expect_refusal({"verify", "a", "--running", "3"}, "'--running'");
  expect_refusal({"prefill", "a"}, "--service is required");
  expect_refusal({"prefill", "--service", "s"}, "FILE is required");
  expect_refusal({"control", "--tls-key", "k"}, "--tls-certificate");
  expect_refusal({"up", "--tls-certificate", "c"}, "--tls-key");
  expect_refusal({"worker", "--busy-poll", "--busy-poll"}, "--busy-poll");
  expect_refusal({"worker", "--busy-poll=1"}, "--busy-poll");
}

TEST(Options, FlagsOfAPoolAndFlagsOfAServiceDoNotMix) {
  const auto text = [](const std::vector<std::string>& words) { return parse(words).text; };
  for (const char* flag : {"--workers", "--query", "--leaf-tokens"}) {
    const std::string value = std::string(flag) == "--query" ? "f32" : "64";
    EXPECT_THAT(text({"verify", "a", "--service", "s", flag, value}),
                AllOf(HasSubstr(flag), HasSubstr("--service")));
  }
  for (const char* flag : {"--workers", "--threads", "--leaf-tokens", "--layers", "--heads",
                           "--kv-gib", "--round-timeout-ms"}) {
    EXPECT_THAT(text({"replay", "--service", "s", flag, "64"}),
                AllOf(HasSubstr(flag), HasSubstr("--service")));
  }
  for (const char* flag : {"--clients", "--token-file", "--ca", "--call-timeout-ms"}) {
    EXPECT_THAT(text({"replay", flag, "7"}), AllOf(HasSubstr(flag), HasSubstr("--service")));
  }
  EXPECT_THAT(text({"replay", "--transport", "tcp"}), HasSubstr("--service"));
  EXPECT_THAT(text({"verify", "a", "--service", "s", "--transport", "rdma"}),
              HasSubstr("'rdma' is not auto, ucx or tcp"));
  EXPECT_THAT(text({"worker", "--client-ca", "f"}), HasSubstr("--tls-certificate"));
  EXPECT_THAT(text({"verify", "a", "--attend-only"}), HasSubstr("--service"));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"verify", "a"}, std::vector<std::string>{"replay"}}) {
    std::vector<std::string> line = words;
    line.insert(line.end(), {"--service", "s", "--disable-cuda-graph"});
    EXPECT_THAT(text(line), AllOf(HasSubstr("--disable-cuda-graph"), HasSubstr("--service")));
  }

  const ParseResult verify =
      parse({"verify", "a", "--service", "s", "--token-file", "t", "--ca", "c", "--tls-certificate",
             "p", "--tls-key", "k", "--transport", "tcp", "--call-timeout-ms", "5", "--busy-poll",
             "--attend-only"});
  ASSERT_FALSE(verify.exit) << verify.text;
  const ServiceOptions& service = verify.options.verify.service;
  EXPECT_EQ(service.url, "s");
  EXPECT_EQ(service.token_file, "t");
  EXPECT_EQ(service.certificate_authority, "c");
  EXPECT_EQ(service.tls_certificate, "p");
  EXPECT_EQ(service.tls_key, "k");
  EXPECT_EQ(service.transport, TransportChoice::kTcp);
  EXPECT_EQ(service.call_timeout_ms, 5);
  EXPECT_TRUE(service.busy_poll);
  EXPECT_TRUE(verify.options.verify.attend_only);

  const ParseResult replay = parse({"replay", "--service", "s", "--clients", "4"});
  ASSERT_FALSE(replay.exit) << replay.text;
  EXPECT_EQ(replay.options.replay.service.url, "s");
  EXPECT_EQ(replay.options.replay.clients, 4);
}

TEST(Options, SwitchesAreOffUntilGiven) {
  EXPECT_FALSE(parse({"worker"}).options.worker.busy_poll);
  EXPECT_FALSE(parse({"worker"}).options.worker.shared_memory);
  EXPECT_FALSE(parse({"worker"}).options.worker.backend_options.disable_cuda_graph);
  const ParseResult on = parse({"up", "--busy-poll", "--shared-memory", "--disable-cuda-graph"});
  ASSERT_FALSE(on.exit) << on.text;
  EXPECT_TRUE(on.options.up.worker.backend_options.disable_cuda_graph);
  EXPECT_TRUE(on.options.up.worker.busy_poll);
  EXPECT_TRUE(on.options.up.worker.shared_memory);
}

/// The processes that `up` starts get the options that `up` got.
TEST(Options, CommandLinesOfOptionsAreReadBackAsThem) {
  const ParseResult up = parse({"up",
                                "--listen",
                                "127.0.0.1:0",
                                "--token-file",
                                "t",
                                "--tls-certificate",
                                "c",
                                "--tls-key",
                                "k",
                                "--health-listen",
                                "127.0.0.1:1",
                                "--max-connections",
                                "9",
                                "--pool-timeout-ms",
                                "1001",
                                "--admission-timeout-ms",
                                "102",
                                "--max-body-bytes",
                                "2048",
                                "--ca",
                                "ca",
                                "--name",
                                "n",
                                "--data-listen",
                                "10.0.0.1",
                                "--port",
                                "77",
                                "--advertise",
                                "h",
                                "--transport",
                                "tcp",
                                "--client-ca",
                                "f",
                                "--busy-poll",
                                "--shared-memory",
                                "--model",
                                "m",
                                "--shape",
                                "kimi-k2",
                                "--layers",
                                "3",
                                "--kv-gib",
                                "0.125",
                                "--leaf-tokens",
                                "128",
                                "--exchange",
                                "all-gather",
                                "--backend",
                                "reference",
                                "--merge-order",
                                "fast",
                                "--disable-cuda-graph",
                                "--attend-kernel",
                                "few",
                                "--threads",
                                "5",
                                "--rows",
                                "f32",
                                "--query",
                                "f32",
                                "--max-batch",
                                "12",
                                "--batch-wait-us",
                                "13",
                                "--lease-ms",
                                "1400",
                                "--round-timeout-ms",
                                "1500",
                                "--worker-timeout-ms",
                                "1600",
                                "--drain-timeout-ms",
                                "17",
                                "--costs",
                                "h200",
                                "--canary-interval-ms",
                                "18",
                                "--max-step-ms",
                                "21",
                                "--move-bytes-per-s",
                                "19"});
  ASSERT_FALSE(up.exit) << up.text;
  WorkerOptions worker = up.options.up.worker;
  worker.control = "https://c:2";
  worker.token_file = "t";
  worker.tls_certificate = "c";
  worker.tls_key = "k";
  const std::vector<std::string> worker_line = command_line(worker);
  const ParseResult parsed = parse(worker_line);
  ASSERT_FALSE(parsed.exit) << parsed.text;
  EXPECT_EQ(command_line(parsed.options.worker), worker_line);
  EXPECT_EQ(worker_line.size(), 1U + 2 * 33 + 3);  // every flag with its value, and three switches

  const std::vector<std::string> control_line = command_line(up.options.up.control);
  const ParseResult control = parse(control_line);
  ASSERT_FALSE(control.exit) << control.text;
  EXPECT_EQ(command_line(control.options.control), control_line);
  EXPECT_EQ(control_line.size(), 1U + 2 * 9);
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
    for (const char* command : {"up", "control", "worker", "prefill", "verify", "replay",
                                "simulate", "info", "Exit status"}) {
      EXPECT_THAT(help.text, HasSubstr(command));
    }
  }
}

TEST(Options, HelpOfACommandShowsEveryFlagWithItsDefaultInLinesOf100Columns) {
  for (const std::string command :
       {"up", "control", "worker", "prefill", "verify", "replay", "simulate", "plan", "info"}) {
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
      // A flag without a default value has words for it, or needs none.
      if (flag.shown_default.empty() || flag.shown_default == "none") continue;
      // A pool's workers have one thread by default.
      const bool threads = command == "verify" || command == "replay";
      std::string shown = flag.name == "--workers" && threads ? "1" : flag.shown_default;
      shown = std::regex_replace(shown, std::regex("[.]"), "[.]");
      EXPECT_THAT(entry, testing::ContainsRegex("default[ \n]+" + shown));
    }
  }
}

}  // namespace
}  // namespace tributary
