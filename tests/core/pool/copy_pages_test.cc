#include "core/pool/copy_pages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "comm/local/run_ranks.h"
#include "core/base/limits.h"
#include "kernels/reference/reference_backend.h"

namespace tributary {
namespace {

constexpr CacheLayout kLayout{.layers = 2, .pages = 4, .kv_lora_rank = 6, .qk_rope_head_dim = 2};
constexpr Deadline::Clock::duration kTimeout = std::chrono::seconds(20);

std::vector<std::byte> rows_of(int rank, int layer, std::int32_t page) {
  std::vector<std::byte> rows(kPageTokens * kLayout.row_bytes());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rank * 64 + layer * 16) +
                                     static_cast<std::size_t>(page));
  }
  return rows;
}

/// Three ranks, all pages written, then the copies. Calls check(rank, failure, page rows).
template <typename Check>
void run(const std::vector<PageCopy>& copies, const Check& check) {
  run_ranks(3, [&](Communicator& communicator) {
    const auto backend = make_reference_backend();
    const auto cache = backend->make_cache(kLayout);
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      for (std::int32_t page = 0; page < kLayout.pages; ++page) {
        backend->store_rows(*cache, layer, page, 0, rows_of(communicator.rank(), layer, page));
      }
    }
    Status failure;
    const Status status =
        copy_pages(copies, *backend, *cache, communicator, Deadline::after(kTimeout), failure);
    EXPECT_TRUE(status.ok()) << status.message();
    check(communicator.rank(), failure, [&](int layer, std::int32_t page) {
      std::vector<std::byte> rows(kPageTokens * kLayout.row_bytes());
      backend->load_rows(*cache, layer, page, 0, rows);
      return rows;
    });
  });
}

TEST(PageCopy, CopiesBetweenSeveralPairsAndNothingElse) {
  const std::vector<PageCopy> copies{
      {0, 1, 2, 3, 1}, {2, 0, 0, 0, 0}, {0, 2, 1, 2, 0}, {0, 1, 2, 2, 0}, {1, 0, 2, 1, 1}};
  std::atomic<int> copied = 0;
  run(copies, [&](int rank, const Status& failure, const auto& rows) {
    EXPECT_TRUE(failure.ok()) << failure.message();
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      for (std::int32_t page = 0; page < kLayout.pages; ++page) {
        auto expected = rows_of(rank, layer, page);
        for (const PageCopy& copy : copies) {
          if (copy.to != rank || copy.to_page != page || copy.layer != layer) continue;
          expected = rows_of(copy.from, layer, copy.from_page);
          ++copied;
        }
        EXPECT_EQ(rows(layer, page), expected);
      }
    }
  });
  EXPECT_EQ(copied, 5);
}

TEST(PageCopy, AFailureIsOfTheRankAndTheOthersGoOn) {
  const std::vector<PageCopy> copies{{0, 9, 1, 3, 1}, {2, 0, 1, 0, 0}};
  run(copies, [&](int rank, const Status& failure, const auto& rows) {
    EXPECT_EQ(failure.code(), rank == 0 ? ErrorCode::kInvalidArgument : ErrorCode::kOk);
    if (rank == 1) {
      EXPECT_EQ(rows(0, 0), rows_of(2, 0, 0));
    }
  });
}

TEST(PageCopy, UnknownWorkersAreRefusedByAll) {
  for (const PageCopy& bad : {PageCopy{0, 0, 3, 0, 0}, {-1, 0, 1, 0, 0}, {1, 0, 1, 2, 0}}) {
    run({bad}, [](int, const Status& failure, const auto&) {
      EXPECT_EQ(failure.code(), ErrorCode::kInvalidArgument);
    });
  }
}

}  // namespace
}  // namespace tributary
