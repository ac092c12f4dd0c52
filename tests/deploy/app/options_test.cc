// Every flag by its line in the tables: default, bounds, bad values; and what a user reads when
// something is wrong.
#include "deploy/app/options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <regex>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "tests/deploy/app/option_samples.h"

namespace tributary {
namespace {

using test::bad_values;
using test::call_with;
using test::Flag;
using test::flags;
using test::good_values;
using test::parse;
using test::text_in;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Options, EveryFlagTakesItsValuesUpToTheBounds) {
  for (const Flag& flag : flags()) {
    const bool is_switch = flag.line.is_switch();
    for (const std::string& value : good_values(flag.line)) {
      for (const bool with_equals : {false, true}) {
        SCOPED_TRACE(flag.command + " " + flag.line.name + " " + value);
        auto words = call_with(flag);
        words.push_back(with_equals && !is_switch ? flag.line.name + "=" + value : flag.line.name);
        if (!with_equals && !is_switch) words.push_back(value);
        ParseResult result = parse(words);
        ASSERT_FALSE(result.exit) << result.text;
        EXPECT_EQ(text_in(result.options, flag), value);
      }
    }
  }
}

TEST(Options, EveryFlagFillsAFieldOfItsOwn) {
  const std::vector<Flag> all = flags();
  ASSERT_GT(all.size(), 180U);
  for (const Flag& flag : all) {
    SCOPED_TRACE(flag.command + " " + flag.line.name);
    Options options;
    const auto tables = command_tables(options);
    const auto table = std::ranges::find(tables, flag.command, &CommandTable::name);
    for (const std::string& value : good_values(flag.line)) {
      table->find(flag.line.key())->read(value);
      for (const OptionLine& other : table->options) {
        if (other.name == flag.line.name) continue;
        EXPECT_EQ(other.text(), other.default_text) << other.name;
      }
    }
  }
}

TEST(Options, EveryFlagRefusesBadValuesInOneLineThatNamesIt) {
  for (const Flag& flag : flags()) {
    if (flag.line.is_switch()) continue;
    for (const std::string& value : bad_values(flag.line)) {
      SCOPED_TRACE(flag.command + " " + flag.line.name + " '" + value + "'");
      auto words = call_with(flag);
      words.insert(words.end(), {flag.line.name, value});
      const ParseResult result = parse(words);
      EXPECT_TRUE(result.exit);
      EXPECT_EQ(result.exit_status, 2);
      EXPECT_THAT(result.text, AllOf(StartsWith(flag.line.name), Not(HasSubstr("\n")),
                                     HasSubstr("tributary " + flag.command + " --help")));
    }
  }
}

TEST(Options, EveryFlagNeedsExactlyOneValue) {
  for (const Flag& flag : flags()) {
    const std::string& name = flag.line.name;
    SCOPED_TRACE(flag.command + " " + name);
    auto words = call_with(flag);
    words.push_back(name);
    if (!flag.line.is_switch()) {
      EXPECT_THAT(parse(words).text, StartsWith(name + " needs a value"));
      const std::string value = good_values(flag.line)[0];
      words.insert(words.end(), {value, name, value});
    } else {
      words.push_back(name);
    }
    const ParseResult twice = parse(words);
    EXPECT_EQ(twice.exit_status, 2);
    EXPECT_THAT(twice.text, StartsWith(name + " is given more than once"));
    if (!flag.line.is_switch()) continue;
    words = call_with(flag);
    words.push_back(name + "=1");
    EXPECT_THAT(parse(words).text, StartsWith(name + " takes no value"));
  }
}

TEST(Options, WhatAFlagNeedsOrExcludesIsRefusedWithoutOrWithIt) {
  for (const Flag& flag : flags()) {
    SCOPED_TRACE(flag.command + " " + flag.line.name);
    std::vector<std::string> words = call_with(flag);
    words.push_back(flag.line.name);
    if (!flag.line.is_switch()) words.push_back(good_values(flag.line)[0]);
    ASSERT_FALSE(parse(words).exit) << parse(words).text;
    for (const std::string& other : flag.line.needs) {
      auto without = words;
      const auto at = std::ranges::find(without, other);
      without.erase(at, at + 2);
      EXPECT_THAT(parse(without).text, HasSubstr(other));
    }
    for (const std::string& other : flag.line.excludes) {
      auto with = words;
      with.insert(with.end(), {other, "a"});
      EXPECT_THAT(parse(with).text, AllOf(HasSubstr(flag.line.name), HasSubstr(other)));
    }
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
  EXPECT_EQ(parse({"replay"}).options.replay.trace, std::nullopt);
  EXPECT_EQ(parse({"replay", "t.jsonl"}).options.replay.trace, "t.jsonl");
  EXPECT_EQ(parse({"replay", "--", "--t"}).options.replay.trace, "--t");
  EXPECT_EQ(parse({"simulate", "t"}).options.command, Command::kSimulate);
  EXPECT_EQ(parse({"simulate", "t"}).options.simulate.trace, "t");
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
  expect_refusal({"prefill", "--service", "http://a:1"}, "FILE is required");
  expect_refusal({"verify", "a", "--running", "3"}, "'--running'");
  expect_refusal({"prefill", "a"}, "--service is required");
  expect_refusal({"prefill", "--service", "s"}, "FILE is required");
  expect_refusal({"control", "--tls-key", "k"}, "--tls-certificate");
  expect_refusal({"up", "--tls-certificate", "c"}, "--tls-key");
}

/// Some of all, as whoever reads the help expects them.
TEST(Options, FlagsOfAPoolAndFlagsOfAServiceDoNotMix) {
  const auto text = [](const std::vector<std::string>& words) { return parse(words).text; };
  EXPECT_THAT(text({"verify", "a", "--service", "s", "--leaf-tokens", "64"}),
              AllOf(HasSubstr("--leaf-tokens"), HasSubstr("--service")));
  EXPECT_FALSE(parse({"verify", "a", "--service", "s", "--threads", "2"}).exit);
  EXPECT_THAT(text({"replay", "--service", "s", "--threads", "2"}),
              AllOf(HasSubstr("--threads"), HasSubstr("--service")));
  EXPECT_THAT(text({"replay", "--clients", "7"}), HasSubstr("--service"));
  EXPECT_THAT(text({"verify", "a", "--service", "s", "--transport", "rdma"}),
              HasSubstr("'rdma' is not auto, ucx or tcp"));
  const ParseResult replay = parse({"replay", "--service", "s", "--clients", "4"});
  ASSERT_FALSE(replay.exit) << replay.text;
  EXPECT_EQ(replay.options.replay.service.url, "s");
  EXPECT_EQ(replay.options.replay.clients, 4);
}

/// The processes that `up` starts get the options that `up` got.
TEST(Options, WordsOfOptionsAreReadBackAsThem) {
  for (const char* command : {"control", "worker"}) {
    Options options;
    const auto table = [&](Options& o) {
      std::vector<CommandTable> tables = command_tables(o);
      return *std::ranges::find(tables, command, &CommandTable::name);
    };
    std::size_t values = 0;
    for (const OptionLine& line : table(options).options) {
      line.read(good_values(line).back());
      values += line.is_switch() ? 1 : 2;
    }
    std::vector<std::string> words = words_of(table(options).options);
    EXPECT_EQ(words.size(), values);
    words.insert(words.begin(), command);
    ParseResult parsed = parse(words);
    ASSERT_FALSE(parsed.exit) << parsed.text;
    EXPECT_EQ(words_of(table(parsed.options).options),
              std::vector<std::string>(words.begin() + 1, words.end()));
  }
}

/// All but where the control plane is and who may reach it.
TEST(Options, UpTakesWhatItsChildrenDo) {
  Options options;
  const std::vector<CommandTable> tables = command_tables(options);
  const CommandTable& up = tables[0];
  // The first two have another name; `up` starts its workers itself.
  const std::set<std::string> others = {"--control", "--listen", "--slots",
                                        "--slot",    "--leader", "--pool-secret-file"};
  for (const CommandTable& child : std::span(tables).subspan(1, 2)) {
    for (const OptionLine& line : child.options) {
      if (child.name == "worker" && others.contains(line.name)) continue;
      ASSERT_NE(up.find(line.key()), nullptr) << line.name;
      EXPECT_EQ(up.find(line.key())->default_text, line.default_text) << line.name;
      EXPECT_EQ(up.find(line.key())->low + up.find(line.key())->high, line.low + line.high);
    }
  }
  up.find("data-listen")->read("10.0.0.1");
  EXPECT_EQ(options.up.worker.listen, "10.0.0.1");
}

TEST(Options, VersionAndHelpAreNotErrors) {
  for (const char* flag : {"--version", "-V"}) {
    const ParseResult version = parse({flag});
    EXPECT_TRUE(version.exit);
    EXPECT_EQ(version.exit_status, 0);
    EXPECT_THAT(version.text, testing::MatchesRegex("tributary [0-9]+\\.[0-9]+\\.[0-9]+ "
                                                    "\\(commit [0-9a-z-]+, [A-Za-z]*\\)\n"));
  }
  for (const char* flag : {"--help", "-h", "help"}) {
    const ParseResult help = parse({flag});
    EXPECT_TRUE(help.exit);
    EXPECT_EQ(help.exit_status, 0);
    for (const char* command : {"up", "control", "worker", "prefill", "verify", "replay",
                                "simulate", "info", "Exit status"}) {
      EXPECT_THAT(help.text, HasSubstr(command));
    }
  }
}

TEST(Options, HelpTakesACommand) {
  EXPECT_EQ(parse({"help", "up"}).text, parse({"up", "--help"}).text);
  EXPECT_EQ(parse({"help", "up", "more"}).text, parse({"up", "--help"}).text);
  EXPECT_EQ(parse({"help", "nope"}).exit_status, 2);
}

/// `first` names options that exist, and the help shows them before the others.
TEST(Options, HelpBeginsWithWhatEverybodyNeedsFirst) {
  Options options;
  for (const CommandTable& table : command_tables(options)) {
    if (table.first.empty()) continue;
    const std::string help = parse({table.name, "--help"}).text;
    SCOPED_TRACE(help);
    EXPECT_LE(table.first.size(), 5U);
    const std::size_t begin = help.find("\nNeeded first:\n");
    const std::size_t end = help.find("\n\n", begin);
    ASSERT_NE(begin, std::string::npos);
    EXPECT_EQ(help.substr(0, begin).find("Options:"), std::string::npos);
    for (const std::string& name : table.first) {
      ASSERT_NE(table.find(name.substr(2)), nullptr) << name;
      EXPECT_LT(help.find("\n  " + name + " ", begin), end) << name;
    }
  }
}

TEST(Options, AMistypedNameHasASuggestion) {
  const auto text = [](const std::vector<std::string>& words) { return parse(words).text; };
  EXPECT_THAT(text({"up", "--worker", "4"}),
              StartsWith("unknown argument '--worker'; did you mean --workers?"));
  EXPECT_THAT(text({"replay", "--lenght-scale", "4"}), HasSubstr("did you mean --length-scale?"));
  EXPECT_THAT(text({"repaly"}), StartsWith("no command 'repaly'; did you mean replay?"));
  EXPECT_THAT(text({"statsu"}), StartsWith("no command 'statsu'; there are up, "));
  EXPECT_THAT(text({"up", "--frobnicate"}), Not(HasSubstr("did you mean")));
}

TEST(Options, HelpOfACommandShowsEveryFlagWithItsRangeAndDefaultInLinesOf100Columns) {
  Options options;
  for (const CommandTable& table : command_tables(options)) {
    const ParseResult help = parse({table.name, "--help"});
    SCOPED_TRACE(help.text);
    EXPECT_TRUE(help.exit);
    EXPECT_EQ(help.exit_status, 0);
    EXPECT_THAT(help.text, HasSubstr("Usage: tributary " + table.name));
    // The types of the parser's own help mean nothing to a user.
    EXPECT_THAT(help.text, AllOf(Not(HasSubstr(" INT")), Not(HasSubstr(" TEXT")),
                                 Not(HasSubstr(" FLOAT")), Not(HasSubstr(" in ["))));
    std::istringstream lines(help.text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
    const std::string flat = std::regex_replace(help.text, std::regex("[ \n]+"), " ");
    for (const OptionLine& line : table.options) {
      const std::string value = line.value.empty() ? "" : " " + line.value;
      EXPECT_THAT(flat, HasSubstr(" " + line.name + value + " " + line.help));
      EXPECT_THAT(line.help, HasSubstr(line.low));
      // A switch is off. A flag without a default value has words for it, or needs none.
      if (line.default_text.empty() || line.is_switch()) continue;
      EXPECT_THAT(line.help, testing::ContainsRegex("default.*[)]"));
      EXPECT_THAT(line.help, HasSubstr("default " + line.default_text));
    }
  }
}

}  // namespace
}  // namespace tributary
