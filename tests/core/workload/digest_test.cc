#include "core/workload/digest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace tributary {
namespace {

std::uint64_t digest_of(std::int64_t tag, std::int64_t position, int layer,
                        const std::vector<float>& output) {
  Digest digest;
  digest.add(tag, position, layer, output);
  return digest.value();
}

TEST(Digest, OrderAndPartsDoNotMatter) {
  const std::vector<float> a{1, 2, 3};
  const std::vector<float> b{4, 5, 6};
  Digest forth;
  forth.add(1, 7, 0, a);
  forth.add(2, 9, 1, b);
  Digest back;
  back.add(2, 9, 1, b);
  Digest part;
  part.add(1, 7, 0, a);
  back.add(part);
  EXPECT_EQ(forth.value(), back.value());
  EXPECT_EQ(Digest().value(), 0U);
  EXPECT_EQ(forth.value(), digest_of(1, 7, 0, a) + digest_of(2, 9, 1, b));
}

TEST(Digest, EverythingCounts) {
  const std::vector<float> output{0.0F, 1.0F, 2.0F};
  std::set<std::uint64_t> seen{digest_of(1, 2, 3, output)};
  const auto expect_new = [&](std::uint64_t digest) { EXPECT_TRUE(seen.insert(digest).second); };
  expect_new(digest_of(2, 2, 3, output));
  expect_new(digest_of(1, 3, 3, output));
  expect_new(digest_of(1, 2, 4, output));
  expect_new(digest_of(2, 1, 3, output));  // exchanged
  expect_new(digest_of(1, 3, 2, output));
  expect_new(digest_of(-1, 2, 3, output));
  expect_new(digest_of(1, 2, 3, {0.0F, 2.0F, 1.0F}));
  expect_new(digest_of(1, 2, 3, {0.0F, 1.0F}));
  expect_new(digest_of(1, 2, 3, {-0.0F, 1.0F, 2.0F}));  // bits, not values
  expect_new(digest_of(1, 2, 3, {0.0F, 1.0F, std::nextafter(2.0F, 3.0F)}));
  expect_new(digest_of(1, 2, 3, {0.0F, 1.0F, 2.0F, 0.0F}));
}

TEST(Digest, IsTheSameOnEveryMachine) {
  // Computed from the definition by another program. Digests are compared between machines and
  // versions.
  EXPECT_EQ(digest_of(1, 2, 3, {0.5F, -1.25F}), 0x0e1d0e146ca45615U);
}

}  // namespace
}  // namespace tributary
