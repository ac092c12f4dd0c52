#include "core/cache/page_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>

#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

TEST(PagePool, StartsFree) {
  const PagePool pool(5);
  EXPECT_EQ(pool.total(), 5);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.reserved(), 0);
  EXPECT_EQ(pool.available(), 5);
  EXPECT_EQ(PagePool(0).available(), 0);
  EXPECT_EQ(code_of([] { PagePool pool(-1); }), ErrorCode::kInvalidArgument);
}

TEST(PagePool, LowestFreePageFirst) {
  PagePool pool(6);
  pool.reserve(6);
  for (int page = 0; page < 5; ++page) EXPECT_EQ(pool.allocate_reserved(), page);
  for (const int page : {3, 0, 4}) EXPECT_TRUE(pool.release(page));
  pool.reserve(3);
  for (const int page : {0, 3, 4, 5}) EXPECT_EQ(pool.allocate_reserved(), page);
}

TEST(PagePool, PromisesOnlyWhatIsFree) {
  PagePool pool(4);
  pool.reserve(3);
  (void)pool.allocate_reserved();
  EXPECT_EQ(pool.used(), 1);
  EXPECT_EQ(pool.reserved(), 2);
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(code_of([&] { pool.reserve(2); }), ErrorCode::kPoolFull);
  EXPECT_EQ(code_of([&] { pool.reserve(-1); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { pool.unreserve(3); }), ErrorCode::kInternal);
  EXPECT_EQ(code_of([&] { pool.unreserve(-1); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pool.reserved(), 2);
  EXPECT_EQ(pool.available(), 1);
  pool.unreserve(2);
  EXPECT_EQ(code_of([&] { (void)pool.allocate_reserved(); }), ErrorCode::kInternal);
  EXPECT_EQ(pool.available(), 3);
}

TEST(PagePool, SharedPageIsFreeAfterItsLastOwner) {
  PagePool pool(2);
  pool.reserve(1);
  const std::int32_t page = pool.allocate_reserved();
  pool.retain(page);
  EXPECT_EQ(pool.reference_count(page), 2);
  EXPECT_FALSE(pool.release(page));
  EXPECT_EQ(pool.used(), 1);
  EXPECT_TRUE(pool.release(page));
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.reference_count(page), 0);
}

TEST(PagePool, RefusesPagesThatAreNotUsed) {
  PagePool pool(2);
  for (const std::int32_t page : {-1, 0, 1, 2}) {
    EXPECT_EQ(code_of([&] { pool.retain(page); }), ErrorCode::kInternal);
    EXPECT_EQ(code_of([&] { (void)pool.release(page); }), ErrorCode::kInternal);
  }
  EXPECT_EQ(code_of([&] { (void)pool.reference_count(2); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { (void)pool.reference_count(-1); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(pool.available(), 2);
}

// The model uses sets and maps, which cannot miscount.
TEST(PagePool, AgreesWithAModelOverRandomOperations) {
  constexpr std::int32_t kPages = 37;
  PagePool pool(kPages);
  std::set<std::int32_t> free;
  for (std::int32_t page = 0; page < kPages; ++page) free.insert(page);
  std::map<std::int32_t, std::int32_t> used;
  std::int32_t reserved = 0;
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto page = static_cast<std::int32_t>(random() % kPages);
    const auto count = static_cast<std::int32_t>(random() % 8);
    const auto available = static_cast<std::int32_t>(free.size()) - reserved;
    switch (random() % 5) {
      case 0: {
        const bool fits = count <= available;
        EXPECT_EQ(code_of([&] { pool.reserve(count); }),
                  fits ? ErrorCode::kOk : ErrorCode::kPoolFull);
        if (fits) reserved += count;
        break;
      }
      case 1: {
        const bool held = count <= reserved;
        EXPECT_EQ(code_of([&] { pool.unreserve(count); }),
                  held ? ErrorCode::kOk : ErrorCode::kInternal);
        if (held) reserved -= count;
        break;
      }
      case 2:
        if (reserved > 0) {
          ASSERT_EQ(pool.allocate_reserved(), *free.begin());
          used[*free.begin()] = 1;
          free.erase(free.begin());
          --reserved;
        }
        break;
      case 3:
        if (used.contains(page)) {
          pool.retain(page);
          ++used[page];
        }
        break;
      default:
        if (used.contains(page)) {
          const bool last = --used[page] == 0;
          ASSERT_EQ(pool.release(page), last);
          if (last) {
            used.erase(page);
            free.insert(page);
          }
        }
    }
    ASSERT_EQ(pool.used(), static_cast<std::int32_t>(used.size()));
    ASSERT_EQ(pool.reserved(), reserved);
    ASSERT_EQ(pool.available(), static_cast<std::int32_t>(free.size()) - reserved);
    ASSERT_EQ(pool.reference_count(page), used.contains(page) ? used[page] : 0);
  }
}

}  // namespace
}  // namespace tributary
