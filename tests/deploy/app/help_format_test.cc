// Entries of the help: columns, wrapping, long names.
#include "deploy/options/help_format.h"

#include <gtest/gtest.h>

#include <string>

namespace tributary {
namespace {

TEST(HelpEntry, TextStartsInOneColumn) {
  EXPECT_EQ(help_entry("--a N", "What a is"), "  --a N                   What a is\n");
  EXPECT_EQ(help_entry("", "x"), std::string(26, ' ') + "x\n");
}

TEST(HelpEntry, ALongNameHasALineOfItsOwn) {
  const std::string name22(22, 'a');
  EXPECT_EQ(help_entry(name22, "x"), "  " + name22 + "  x\n");
  const std::string name23(23, 'a');
  EXPECT_EQ(help_entry(name23, "x"), "  " + name23 + "\n" + std::string(26, ' ') + "x\n");
}

TEST(HelpEntry, LinesEndAtColumn100) {
  const std::string indent(26, ' ');
  const std::string word36(36, 'b');
  const std::string word37(37, 'c');
  // 26 + 36 + 1 + 37 = 100
  EXPECT_EQ(help_entry("", word36 + " " + word37), indent + word36 + " " + word37 + "\n");
  EXPECT_EQ(help_entry("", word37 + " " + word37), indent + word37 + "\n" + indent + word37 + "\n");
  const std::string endless(200, 'd');
  EXPECT_EQ(help_entry("", endless + " e"), indent + endless + "\n" + indent + "e\n");
}

}  // namespace
}  // namespace tributary
