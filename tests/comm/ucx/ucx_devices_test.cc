#include "comm/ucx/ucx_devices.h"

#include <gtest/gtest.h>

namespace tributary::ucx {
namespace {

TEST(UcxDevices, AreReadFromWhatUcxPrints) {
  constexpr std::string_view kPrinted =
      "#\n# UCP context\n#\n#     component 0  :  self\n"
      "#            md 1  :  component 1  tcp \n#\n"
      "#      resource 1  :  md 1  dev 1  flags -- tcp/lo\n"
      "#      resource 2  :  md 2  dev 2  flags -- rc_verbs/mlx5_0:1 \n#\n";
  EXPECT_EQ(devices_in(kPrinted), (std::vector<std::string>{"lo", "mlx5_0:1"}));
  EXPECT_TRUE(devices_in("").empty());
}

TEST(UcxDevices, WhatUcxHasNoTransportForIsNotUsable) {
  // A network device that every machine has, and a port that none has.
  EXPECT_EQ(usable_ports("lo,nothing_0:1"), "lo");
  EXPECT_EQ(usable_ports(""), "");
}

}  // namespace
}  // namespace tributary::ucx
