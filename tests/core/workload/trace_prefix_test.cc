#include "core/workload/trace_prefix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "core/sequencer/block_names.h"
#include "core/workload/row_origins.h"
#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

TraceRequest request(std::int64_t prompt, std::vector<std::int64_t> ids) {
  return {
      .timestamp_ms = 0, .input_length = prompt, .output_length = 1, .hash_ids = std::move(ids)};
}

TEST(TracePrefix, NamesTheBlocksThatTheIdsTellApart) {
  const std::vector<std::int64_t> ids{5, 6, 7};
  const Prefix prefix = trace_prefix(ids, 1300, 1, 2048);
  EXPECT_EQ(prefix.block_tokens, 512);
  EXPECT_EQ(prefix.blocks(), 2);  // full ones
  check_prefix(prefix, 1300, 2048);
  const Prefix other = trace_prefix(std::vector<std::int64_t>{5, 8}, 1024, 1, 2048);
  EXPECT_EQ(other.key(0), prefix.key(0));
  EXPECT_NE(other.key(1), prefix.key(1));
  EXPECT_EQ(trace_prefix({}, 1300, 1, 2048), Prefix{});
}

TEST(TracePrefix, BlocksFitTheLeafAndTheScale) {
  const std::vector<std::int64_t> ids{5, 6, 7};
  EXPECT_EQ(trace_prefix(ids, 1500, 1, 64).block_tokens, 64);
  EXPECT_EQ(trace_prefix(ids, 1500, 1, 64).blocks(), 23);
  EXPECT_EQ(trace_prefix(ids, 8 * 1500, 8, 2048).block_tokens, 2048);
  const Prefix tenth = trace_prefix(ids, 150, 0.1, 2048);
  EXPECT_EQ(tenth.block_tokens, 64);
  ASSERT_EQ(tenth.blocks(), 2);  // tokens 0 to 639 of the trace's, then 640 to 1279
  EXPECT_EQ(trace_prefix(std::vector<std::int64_t>{5, 6}, 150, 0.1, 2048).blocks(), 1);
  EXPECT_EQ(trace_prefix(std::vector<std::int64_t>{5, 6, 8}, 150, 0.1, 2048).key(0), tenth.key(0));
}

/// What has one name is made from the same rows.
TEST(TracePrefix, RowsOfABlockAreThoseOfTheFirstRequestThatHasIt) {
  for (const double scale : {1.0, 0.1, 0.37, 8.0}) {
    const auto scaled = [&](int tokens) { return static_cast<std::int64_t>(tokens * scale); };
    const std::vector<TraceRequest> requests{
        request(scaled(1300), {5, 6, 7}), request(scaled(2000), {5, 6, 8, 9}),
        request(scaled(1900), {5, 6, 8, 10}), request(scaled(600), {}),
        request(scaled(600), {11, 6})};
    const RowOrigins origins(requests, scale);
    for (std::int64_t a = 0; a < std::ssize(requests); ++a) {
      const TraceRequest& one = requests[static_cast<std::size_t>(a)];
      const Prefix names = trace_prefix(one.hash_ids, one.input_length, scale, 64);
      EXPECT_EQ(origins.of(a, one.input_length), a);  // a new token
      for (std::int64_t b = 0; b < a; ++b) {
        const TraceRequest& before = requests[static_cast<std::size_t>(b)];
        const Prefix others = trace_prefix(before.hash_ids, before.input_length, scale, 64);
        std::int64_t equal = 0;
        while (equal < std::min(names.blocks(), others.blocks()) &&
               names.key(equal) == others.key(equal)) {
          ++equal;
        }
        for (std::int64_t p = 0; p < equal * 64; ++p) {
          ASSERT_EQ(origins.of(a, p), origins.of(b, p)) << a << " and " << b << " at " << p;
        }
        EXPECT_EQ(equal > 0, a < 3) << a << " and " << b << ", scale " << scale;
      }
    }
  }
}

/// An id of the published trace stands for all tokens before it too.
TEST(TracePrefix, TheTracesIdsAreChained) {
  const auto path = test::shared_file("traces/conversation_trace.jsonl");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "absent: " << path;
  std::map<std::int64_t, std::pair<std::size_t, std::int64_t>> before;
  for (const TraceRequest& one : read_trace(path)) {
    for (std::size_t i = 0; i < one.hash_ids.size(); ++i) {
      const std::pair place{i, i == 0 ? -1 : one.hash_ids[i - 1]};
      EXPECT_EQ(before.try_emplace(one.hash_ids[i], place).first->second, place);
    }
  }
}

}  // namespace
}  // namespace tributary
