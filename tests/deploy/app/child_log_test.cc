// What `up` passes on of its children's output, and what it keeps as the reason of their end.
#include "deploy/app/up/child_log.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

constexpr auto kBorder = "--------------------------------------------------------------------\n";

TEST(ChildLog, PassesOnWholeLinesAndKeepsTheFirstError) {
  ChildLog log(/*launcher_too=*/false);
  EXPECT_EQ(log.pass_on("tributary: a word\ntributary: not_"), "tributary: a word\n");
  EXPECT_FALSE(log.error().has_value());
  EXPECT_EQ(log.pass_on("found: nobody\ntributary: io: later\nlistening on http://a\nx\n"), "x\n");
  ASSERT_TRUE(log.error().has_value());
  EXPECT_EQ(log.error()->code(), ErrorCode::kNotFound);
  EXPECT_EQ(log.error()->message(), "nobody");
}

TEST(ChildLog, TheLaunchersWordsAreLeftOutUnlessAskedFor) {
  const std::string words =
      std::string("a\n") + kBorder + "mpirun noticed that\n" + kBorder + "b\n";
  EXPECT_EQ(ChildLog(false).pass_on(words), "a\nb\n");
  EXPECT_EQ(ChildLog(true).pass_on(words), words);
}

TEST(ChildLog, AWordThatIsNoCodeIsNoError) {
  ChildLog log(false);
  EXPECT_EQ(log.pass_on("tributary: placement by cpu: figures\n"),
            "tributary: placement by cpu: figures\n");
  EXPECT_FALSE(log.error().has_value());
}

}  // namespace
}  // namespace tributary
