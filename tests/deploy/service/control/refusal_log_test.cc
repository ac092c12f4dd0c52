#include "deploy/service/control/refusal_log.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

TEST(RefusalLog, SaysWhatIsNew) {
  RefusalLog log;
  HttpTraffic traffic;
  EXPECT_EQ(log.update(traffic), "");
  traffic.responses = {{200, 9}, {404, 9}, {401, 2}};
  EXPECT_EQ(log.update(traffic), "2 requests answered 401");
  EXPECT_EQ(log.update(traffic), "");
  traffic.responses = {{200, 10}, {401, 3}, {413, 1}};
  traffic.refused = 4;
  traffic.evicted = 5;
  EXPECT_EQ(log.update(traffic),
            "4 connections refused for want of room, 5 idle connections closed to make room, "
            "1 requests answered 401, 1 requests answered 413");
}

}  // namespace
}  // namespace tributary
