// Every flag from a configuration file: the same values, bounds and defaults as on the command
// line.
#include "deploy/app/config/config_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "deploy/app/options.h"
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

class ConfigFileTest : public testing::Test {
 protected:
  ConfigFileTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            fmt::format("tributary_{}_{}.toml", info->name(), ::getpid());
  }
  ~ConfigFileTest() override { std::filesystem::remove(path_); }

  void write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  [[nodiscard]] ParseResult check() const { return parse({"config", "--check", path_.string()}); }
  /// The errors of a file with this text.
  [[nodiscard]] std::string errors(const std::string& text) const {
    write(text);
    const ParseResult result = check();
    EXPECT_EQ(result.exit_status, 2) << text;
    EXPECT_TRUE(result.exit);
    return result.text;
  }
  [[nodiscard]] std::string at(int line) const {
    return fmt::format("{}:{}: ", path_.string(), line);
  }

  std::filesystem::path path_;
};

/// A TOML value of a flag: a switch has no text.
std::string toml(const OptionLine& line, const std::string& value) {
  return line.is_switch() && !value.empty() ? value : "\"" + value + "\"";
}

TEST_F(ConfigFileTest, EveryFlagTakesItsValuesFromAFile) {
  for (const Flag& flag : flags()) {
    for (const std::string& value : good_values(flag.line)) {
      SCOPED_TRACE(flag.command + " " + flag.line.name + " " + value);
      write(fmt::format("[{}]\n{} = {}\n", flag.command, flag.line.key(), toml(flag.line, value)));
      auto words = call_with(flag);
      words.insert(words.end(), {"--config", path_.string()});
      ParseResult result = parse(words);
      ASSERT_FALSE(result.exit) << result.text;
      EXPECT_EQ(text_in(result.options, flag), value);
    }
  }
}

TEST_F(ConfigFileTest, EveryFlagRefusesBadValuesWithTheirLine) {
  for (const Flag& flag : flags()) {
    for (const std::string& value : bad_values(flag.line)) {
      SCOPED_TRACE(flag.command + " " + flag.line.name + " '" + value + "'");
      const std::string text =
          errors(fmt::format("\n[{}]\n{} = \"{}\"\n", flag.command, flag.line.key(), value));
      EXPECT_THAT(text,
                  StartsWith(fmt::format("{}[{}] {}: ", at(3), flag.command, flag.line.key())));
      // The command itself reports the first.
      auto words = call_with(flag);
      words.insert(words.end(), {"--config", path_.string()});
      EXPECT_THAT(parse(words).text, StartsWith(text.substr(0, text.find('\n'))));
    }
  }
}

TEST_F(ConfigFileTest, TheDefaultsHaveEveryFlagAndChangeNothing) {
  const ParseResult defaults = parse({"config", "--print-defaults"});
  EXPECT_TRUE(defaults.exit);
  EXPECT_EQ(defaults.exit_status, 0);
  write(defaults.text);
  const ParseResult checked = check();
  EXPECT_EQ(checked.exit_status, 0) << checked.text;
  for (const Flag& flag : flags()) {
    SCOPED_TRACE(flag.command + " " + flag.line.name);
    const std::size_t begin = defaults.text.find("\n[" + flag.command + "]\n");
    ASSERT_NE(begin, std::string::npos);
    const std::string table =
        defaults.text.substr(begin, defaults.text.find("\n[", begin + 1) - begin);
    const bool alone = flag.line.needs.empty() && flag.line.excludes.empty();
    const std::string mark = alone && !flag.line.default_text.empty() ? "" : "#";
    EXPECT_THAT(table, HasSubstr("\n" + mark + flag.line.key() + " = "));
    if (flag.line.required) continue;
    // Only what a command cannot do without is given beside the file.
    auto words = call_with({flag.command, {}});
    words.insert(words.end(), {"--config", path_.string()});
    ParseResult with_file = parse(words);
    ASSERT_FALSE(with_file.exit) << with_file.text;
    EXPECT_EQ(text_in(with_file.options, flag), flag.line.default_text);
  }
}

TEST_F(ConfigFileTest, TomlsOwnTypesAreTaken) {
  write(
      "[worker]\nkv-gib = 0.25\nlayers = 3\nbusy-poll = true\nshared-memory = false\n"
      "control = 'http://c:1'\n[control]\nmax-connections = 7\n");
  const ParseResult worker = parse({"worker", "--config", path_.string()});
  ASSERT_FALSE(worker.exit) << worker.text;
  EXPECT_EQ(worker.options.worker.kv_gib, 0.25);
  EXPECT_EQ(worker.options.worker.layers, 3);
  EXPECT_TRUE(worker.options.worker.busy_poll);
  EXPECT_FALSE(worker.options.worker.shared_memory);
  EXPECT_EQ(worker.options.worker.control, "http://c:1");
  EXPECT_EQ(parse({"control", "--config", path_.string()}).options.control.max_connections, 7);
}

TEST_F(ConfigFileTest, TheCommandLineWins) {
  write("[control]\nmax-connections = 7\nfailure-timeout-ms = 1700\n");
  for (const std::vector<std::string>& flag :
       {std::vector<std::string>{"--max-connections", "9"}, {"--max-connections=9"}}) {
    for (const bool before : {false, true}) {
      std::vector<std::string> words = {"control", "--config=" + path_.string()};
      words.insert(before ? words.begin() + 1 : words.end(), flag.begin(), flag.end());
      const ParseResult result = parse(words);
      ASSERT_FALSE(result.exit) << result.text;
      EXPECT_EQ(result.options.control.max_connections, 9);
      EXPECT_EQ(result.options.control.failure_timeout_ms, 1700);
    }
  }
}

TEST_F(ConfigFileTest, FlagsOfTheFileAndOfTheLineMustFitTogether) {
  write("[replay]\nworkers = 2\n[control]\ntls-key = 'k'\n[up]\ntls-key = 'k'\n");
  EXPECT_THAT(parse({"replay", "--config", path_.string(), "--service", "s"}).text,
              AllOf(HasSubstr("--workers"), HasSubstr("--service")));
  EXPECT_THAT(parse({"control", "--config", path_.string()}).text, HasSubstr("--tls-certificate"));
  const ParseResult both = parse({"control", "--config", path_.string(), "--tls-certificate", "c"});
  ASSERT_FALSE(both.exit) << both.text;
  EXPECT_EQ(both.options.control.tls_key, "k");
  EXPECT_THAT(check().text, AllOf(HasSubstr(at(4) + "[control] tls-key: needs tls-certificate"),
                                  HasSubstr(at(6) + "[up] tls-key: needs tls-certificate")));
  EXPECT_THAT(errors("[replay]\nservice = 's'\nworkers = 2\n"),
              HasSubstr(at(3) + "[replay] workers: makes no sense beside service"));
}

TEST_F(ConfigFileTest, EverythingThatIsWrongIsSaidAtOnce) {
  const std::string text = errors(
      "listen = 'x'\n"
      "[control]\n"
      "token_file = 't'\n"
      "max-connections = 0\n"
      "failure-timeout-ms = 12\n"
      "[wroker]\n"
      "name = 'a'\n"
      "[worker]\n"
      "busy-poll = 1\n"
      "layers = true\n"
      "name = ['a']\n"
      "frobnicate = 1\n");
  EXPECT_EQ(text,
            at(1) +
                "'listen' stands in no table; the flags of `tributary control` belong under "
                "[control]\n" +
                at(3) + "[control] 'token_file': no such flag; is it 'token-file'?\n" +  //
                at(4) + "[control] max-connections: '0' is not a whole number from 1 to 65536\n" +
                at(5) +
                "[control] failure-timeout-ms: '12' is not a whole number from 1000 to "
                "536870911\n" +
                at(6) + "no command has the table ['wroker']; is it 'worker'?\n" + at(9) +
                "[worker] busy-poll: '1' is not true or false\n" + at(10) +
                "[worker] layers: 'true' is not a value of --layers\n" + at(11) +
                "[worker] name: an array, not a value\n" + at(12) +
                "[worker] 'frobnicate': no such flag");
  EXPECT_THAT(parse({"control", "--config", path_.string()}).text,
              AllOf(StartsWith(at(1)), HasSubstr("(and 8 more: tributary config --check"),
                    Not(HasSubstr("\n"))));
}

TEST_F(ConfigFileTest, WhatIsNotTomlIsRefusedWithItsPlace) {
  EXPECT_THAT(errors("[control]\nlisten = \n"), StartsWith(path_.string() + ":2:"));
  EXPECT_THAT(errors("[control]\na = 1\na = 2\n"), StartsWith(path_.string() + ":3:"));
  EXPECT_THAT(errors("\033[2J\0"), Not(HasSubstr("\033")));
  EXPECT_THAT(errors("[control]\n\"\\u001b[2J\" = 1\n"), Not(HasSubstr("\033")));
  EXPECT_THAT(errors(std::string(2 << 20, '#')), HasSubstr("1048576 bytes"));
  EXPECT_THAT(errors(std::string(100'000, '[')), StartsWith(path_.string() + ":1:"));
  std::filesystem::remove(path_);
  EXPECT_THAT(check().text, HasSubstr("cannot be read"));
  EXPECT_THAT(parse({"config", "--check", testing::TempDir()}).text, HasSubstr("cannot be read"));
  EXPECT_EQ(parse({"control", "--config", path_.string()}).exit_status, 2);
}

TEST_F(ConfigFileTest, HelpAndAnEmptyFileAreNoErrors) {
  EXPECT_EQ(parse({"control", "--config", "absent", "--help"}).exit_status, 0);
  write("");
  EXPECT_EQ(check().exit_status, 0);
  EXPECT_FALSE(parse({"control", "--config", path_.string()}).exit);
  EXPECT_THAT(parse({"control", "--config"}).text, StartsWith("--config needs a value"));
  EXPECT_THAT(parse({"info", "--config", "x"}).text, HasSubstr("'--config'"));
  EXPECT_EQ(parse({"config"}).exit_status, 2);
}

}  // namespace
}  // namespace tributary
