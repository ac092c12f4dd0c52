// The whole pool with real kernels: workers that share a GPU, their exchange staged through the
// host, give the digest of one.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "deploy/app/verify/verify.h"
#include "tests/deploy/app/replay_runs.h"

namespace tributary::test {
namespace {

ReplayOptions cuda_options(RowFormat rows) {
  ReplayOptions options = small_options();
  options.backend = "cuda/0";
  options.row_format = rows;
  options.query_dtype = row_values(rows);
  options.spread = SpreadPolicy::kAll;
  options.canary_rate = 1;
  return options;
}

TEST(CudaReplay, DigestIsTheSameForWorkersThatShareAGpu) {
  // The few-rows kernel and, where there is one, the many-rows kernel; then the generic one.
  for (const auto& [rows, heads] :
       {std::pair(RowFormat::kBF16, 2), std::pair(RowFormat::kBF16, 16),
        std::pair(RowFormat::kBF16, 128), std::pair(RowFormat::kFp8DsMla, 16),
        std::pair(RowFormat::kFp8DsMla, 128), std::pair(RowFormat::kFp8, 128),
        std::pair(RowFormat::kF32, 2)}) {
    for (const int tokens_per_step : {1, 3}) {
      ReplayOptions options = cuda_options(rows);
      options.heads = heads;
      options.tokens_per_step = tokens_per_step;
      const ReplayReport one = run_threads(options, small_trace(), 1);
      EXPECT_GT(one.canaries, 0);
      EXPECT_LT(one.canary_max_relative_error, 1.5e-2);
      for (const int workers : {2, 4}) {
        const ReplayReport many = run_threads(options, small_trace(), workers);
        EXPECT_EQ(many.digest, one.digest)
            << workers << " workers, " << heads << " heads of " << row_format_name(rows);
        EXPECT_EQ(many.pool->communicator, "staged/threads");
      }
    }
  }
}

TEST(CudaReplay, DigestDoesNotDependOnTheBatchOrTheLeavesPlaces) {
  ReplayOptions options = cuda_options(RowFormat::kBF16);
  const std::uint64_t digest = run_threads(options, small_trace(), 1).digest;
  options.max_batch = 2;
  EXPECT_EQ(run_threads(options, small_trace(), 1).digest, digest);
  options.spread = SpreadPolicy::kSingle;
  EXPECT_EQ(run_threads(options, small_trace(), 2).digest, digest);
}

TEST(CudaVerify, GoldenFileThroughPrefillAndDecode) {
  for (const int workers : {1, 2}) {
    const auto network = std::make_shared<LocalNetwork>();
    run_ranks(workers, [&](Communicator& communicator) {
      VerifyOptions options;
      options.files = {TRIBUTARY_REPO_ROOT "/tests/data/tiny.safetensors"};
      options.backend = "cuda/0";
      options.threads = 1;
      const Verification result = verify(options, communicator, network);
      EXPECT_EQ(result.rows.empty(), communicator.rank() != 0);
      for (const VerifyRow& row : result.rows) EXPECT_TRUE(row.ok()) << to_text({row});
    });
  }
}

}  // namespace
}  // namespace tributary::test
