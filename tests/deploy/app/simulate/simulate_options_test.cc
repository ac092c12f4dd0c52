// The lists that the flags of `tributary simulate` take.
#include "deploy/app/simulate/simulate_options.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tributary {
namespace {

TEST(SimulateOptions, ListsAreReadAndShownAlike) {
  for (const char* text : {"auto", "single,all", "single,all,auto"}) {
    EXPECT_EQ(flag_text(parse_spread_list(text)), text);
  }
  for (const char* text : {"2", "0.5,1000000", "3,2,1"}) {
    EXPECT_EQ(flag_text(parse_rate_list(text)), text);
  }
}

TEST(SimulateOptions, BadListsAreRefused) {
  for (const char* text : {"", "auto,", ",auto", "auto;all", "Auto"}) {
    EXPECT_THROW((void)parse_spread_list(text), Error) << text;
  }
  for (const char* text : {"", "1,", "0", "-1", "nan", "1e7", "1 2", "x"}) {
    EXPECT_THROW((void)parse_rate_list(text), Error) << text;
  }
}

}  // namespace
}  // namespace tributary
