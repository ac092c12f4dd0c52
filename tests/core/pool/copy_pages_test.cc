#include "core/pool/copy_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "comm/local/run_ranks.h"
#include "core/base/limits.h"
#include "kernels/reference/reference_backend.h"

namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
/// This thread gets no memory of that many bytes or more.
thread_local std::size_t refused_bytes = kNoLimit;

}  // namespace

// Not inlined: GCC warns of free() where it sees new and free() side by side.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* memory = bytes < refused_bytes ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
/// Sorting takes its memory so: what one form has taken, another may give back.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return bytes < refused_bytes ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace tributary {
namespace {

constexpr CacheLayout kLayout{.layers = 2, .pages = 4, .kv_lora_rank = 6, .qk_rope_head_dim = 2};
constexpr Duration kTimeout = std::chrono::seconds(20);

std::vector<std::byte> rows_of(int rank, int layer, std::int32_t page) {
  std::vector<std::byte> rows(kPageTokens * kLayout.row_bytes());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rank * 64 + layer * 16) +
                                     static_cast<std::size_t>(page));
  }
  return rows;
}

/// Three ranks, all pages written, then the copies, in which rank `poor` gets no memory for a page.
/// Calls check(rank, failure, page rows).
template <typename Check>
void run(const std::vector<PageCopy>& copies, const Check& check, int poor = -1) {
  run_ranks(3, [&](Communicator& communicator) {
    const auto backend = make_reference_backend();
    const auto cache = backend->make_cache(kLayout);
    for (int layer = 0; layer < kLayout.layers; ++layer) {
      for (std::int32_t page = 0; page < kLayout.pages; ++page) {
        backend->store_rows(*cache, layer, page, 0, rows_of(communicator.rank(), layer, page));
      }
    }
    Status failure;
    const auto copy = [&] {
      Duration took{};
      return copy_pages(copies, *backend, *cache, communicator, Deadline::after(kTimeout),
                        steady_clock(), failure, took);
    };
    if (communicator.rank() == poor) refused_bytes = kPageTokens * kLayout.row_bytes();
    Status status;
    const Status thrown = status_of([&] { status = copy(); });
    refused_bytes = kNoLimit;
    EXPECT_TRUE(thrown.ok()) << thrown.message();
    if (poor >= 0) {
      check(communicator.rank(), std::exchange(failure, {}),
            [](int, std::int32_t) { return std::vector<std::byte>(); });
      status = copy();  // the pool goes on
    }
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
      {0, 1, 2, 3, 1}, {2, 0, 0, 0, 0}, {0, 2, 1, 2, 0}, {0, 1, 2, 2, 0},
      {1, 0, 2, 1, 1}, {1, 2, 1, 0, 0}};  // the last on one worker, from a page that another copy
                                          // writes to
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
  EXPECT_EQ(copied, 6);
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

TEST(PageCopy, WithoutMemoryOnOneRankNothingIsCopiedAndAllGoOn) {
  const std::vector<PageCopy> copies{{0, 1, 1, 3, 1}, {2, 0, 1, 0, 0}, {2, 1, 0, 2, 0}};
  for (int poor = 0; poor < 3; ++poor) {
    std::atomic<int> failures = 0;
    run(
        copies,
        [&](int rank, const Status& failure, const auto& rows) {
          if (!failure.ok()) ++failures;
          EXPECT_TRUE(failure.ok() || rank == poor) << rank << ": " << failure.message();
          const std::vector<std::byte> copied = rows(0, 0);
          EXPECT_TRUE(rank != 1 || copied.empty() || copied == rows_of(2, 0, 0));
        },
        poor);
    EXPECT_EQ(failures, 1);
  }
}

/// What lies behind them in the target may be another's, and on its way.
TEST(PageCopy, OfAPageTheFirstRowsAlone) {
  const std::vector<PageCopy> copies{{0, 1, 0, 3, 1, 17}, {1, 0, 2, 0, 0, 1}};
  run(copies, [&](int rank, const Status& failure, const auto& rows) {
    EXPECT_TRUE(failure.ok()) << failure.message();
    for (const PageCopy& copy : copies) {
      if (copy.to != rank) continue;
      std::vector<std::byte> expected = rows_of(rank, copy.layer, copy.to_page);
      const std::vector<std::byte> source = rows_of(copy.from, copy.layer, copy.from_page);
      std::copy_n(source.begin(), static_cast<std::size_t>(copy.rows) * kLayout.row_bytes(),
                  expected.begin());
      EXPECT_EQ(rows(copy.layer, copy.to_page), expected);
    }
  });
}

TEST(PageCopy, UnknownWorkersAndRowsAreRefusedByAll) {
  for (const PageCopy& bad :
       {PageCopy{0, 0, 3, 0, 0}, {-1, 0, 1, 0, 0}, {0, 0, 1, 0, 0, 0}, {0, 0, 1, 0, 0, 65}}) {
    run({bad}, [](int, const Status& failure, const auto&) {
      EXPECT_EQ(failure.code(), ErrorCode::kInvalidArgument);
    });
  }
}

}  // namespace
}  // namespace tributary
