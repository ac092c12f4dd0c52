// The address of this machine that a worker takes; the loopback device is on every machine.
#include "deploy/service/worker/listen_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "comm/local/run_ranks.h"
#include "core/base/error.h"

namespace tributary {
namespace {

using ::testing::HasSubstr;

TEST(ListenAddress, AnAddressStaysAsItIs) {
  for (const char* text : {"127.0.0.1", "0.0.0.0", "10.1.2.3", "::1", "fd00::2"}) {
    EXPECT_EQ(local_address(text), text);
  }
}

TEST(ListenAddress, NetworksAndDevicesAreLookedUp) {
  for (const char* text : {"127.0.0.0/8", "127.0.0.1/32", "126.0.0.0/7", "lo"}) {
    EXPECT_EQ(local_address(text), "127.0.0.1") << text;
  }
}

TEST(ListenAddress, WhatNothingHereMatchesIsRefusedWithWhatThereIs) {
  for (const char* text :
       {"203.0.113.0/24", "127.64.0.0/10", "2001:db8::/32", "no-such-device", ""}) {
    try {
      (void)local_address(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(std::string("'") + text + "'"));
      EXPECT_THAT(error.what(), HasSubstr("lo 127.0.0.1"));
    }
  }
}

TEST(ListenAddress, BrokenNetworksAreRefused) {
  for (const char* text : {"10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/8x", "eth0/8", "/8",
                           "::/129", "10.0.0/8"}) {
    try {
      (void)local_address(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr("a network is ADDRESS/BITS")) << text;
    }
  }
}

TEST(SharedAddress, OnOneMachineIsTheLoopback) {
  run_ranks(3, [](Communicator& communicator) {
    EXPECT_EQ(shared_address(communicator, Deadline::after(std::chrono::minutes(1))), "127.0.0.1");
  });
}

}  // namespace
}  // namespace tributary
