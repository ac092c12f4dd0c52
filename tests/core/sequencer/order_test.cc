#include "core/sequencer/order.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <variant>
#include <vector>

#include "tests/core/base/expect_error.h"
#include "tests/core/cache/same_sequence.h"

namespace tributary {
namespace {

bool same(const Sequence& a, const Sequence& b) {
  return same_sequence(a, b);
}
bool same(const AdmitOp& a, const AdmitOp& b) {
  return same_sequence(a.sequence, b.sequence);
}
bool same(const ExtendOp& a, const ExtendOp& b) {
  return a.id == b.id && a.leaf == b.leaf && a.owner == b.owner && a.pages == b.pages;
}
bool same(const CommitOp& a, const CommitOp& b) {
  return a.id == b.id && a.accepted == b.accepted;
}
bool same(const TruncateOp& a, const TruncateOp& b) {
  return a.id == b.id && a.epoch == b.epoch && a.length == b.length &&
         a.copied_page == b.copied_page;
}
bool same(const FreeOp& a, const FreeOp& b) {
  return a.id == b.id;
}
bool same(const MoveOp& a, const MoveOp& b) {
  return a.id == b.id && a.first_leaf == b.first_leaf && a.owner == b.owner && a.pages == b.pages;
}
bool same(const RaiseLimitOp& a, const RaiseLimitOp& b) {
  return a.id == b.id && a.limit_tokens == b.limit_tokens && a.owners == b.owners;
}
bool same(const LoseOp& a, const LoseOp& b) {
  return a.id == b.id && a.epoch == b.epoch && a.leaves == b.leaves;
}
bool same(const HomeOp& a, const HomeOp& b) {
  return a.id == b.id && a.home == b.home;
}
template <typename... Ops>
bool same(const std::variant<Ops...>& a, const std::variant<Ops...>& b) {
  return a.index() == b.index() &&
         std::visit([&b](const auto& x) { return same(x, std::get<std::decay_t<decltype(x)>>(b)); },
                    a);
}
bool same(const StepItem& a, const StepItem& b) {
  return a.id == b.id && a.tokens == b.tokens && a.layer == b.layer && a.epoch == b.epoch &&
         a.base_length == b.base_length;
}
template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::ranges::equal(a, b, [](const T& x, const T& y) { return same(x, y); });
}
bool same(const Order& a, const Order& b) {
  return a.round == b.round && a.members == b.members && a.generation == b.generation &&
         a.table.has_value() == b.table.has_value() && (!a.table || same(*a.table, *b.table)) &&
         a.stop == b.stop && same(a.ops, b.ops) && a.copies == b.copies && same(a.step, b.step) &&
         a.canary.item == b.canary.item && a.canary.head == b.canary.head;
}

/// One of each operation, with extremes.
Order example_order() {
  Order order;
  order.round = UINT64_MAX;
  order.members = {0, 2, INT32_MAX};
  order.generation = UINT64_MAX - 1;
  order.table = {
      {.id = 5, .epoch = 9, .lost_since = 7, .length = 3, .leaves = {{-1, {}}, {2, {4}}}},
      {.id = 6, .leaves = {}}};
  order.stop = true;
  order.ops = {AdmitOp{{.id = 0x1'0000'0002,
                        .epoch = 3,
                        .home = 4,
                        .tag = -5,
                        .prompt_tokens = 70,
                        .present_tokens = 64,
                        .limit_tokens = 190,
                        .length = 70,
                        .leaves = {{1, {7, INT32_MAX}}, {0, {}}, {-1, {9}}}}},
               ExtendOp{1, 2, 3, {4, 5}},
               ExtendOp{1, 2, 3, {}},
               CommitOp{UINT64_MAX, -7},
               TruncateOp{8, 9, INT64_MIN, 7},
               FreeOp{10},
               MoveOp{11, 12, -13, {14, INT32_MIN}},
               RaiseLimitOp{15, INT64_MAX, {16, -17}},
               RaiseLimitOp{18, 19, {}},
               HomeOp{20, -21},
               LoseOp{22, UINT32_MAX, {0, -23}}};
  order.copies = {{1, 2, 3, 4, 5}, {INT32_MAX, -1, 0, 0, INT32_MIN}};
  order.step = {{1, 2, 3, 4, 5}, {UINT64_MAX, INT32_MIN, 60, UINT32_MAX, INT64_MIN}};
  order.canary = {1, 127};
  return order;
}

TEST(Order, RoundTripsEveryOperation) {
  const Order order = example_order();
  const auto bytes = encode_order(order);
  EXPECT_TRUE(same(decode_order(bytes), order));
}

TEST(Order, RoundTripsATableOfNothing) {
  Order order = example_order();
  order.table.emplace();
  EXPECT_TRUE(same(decode_order(encode_order(order)), order));
}

TEST(Order, RoundTripsNothing) {
  const Order order = decode_order(encode_order(Order{}));
  EXPECT_TRUE(same(order, Order{}));
  EXPECT_FALSE(same(order, example_order()));
}

/// Two equal orders have equal bytes: what lies between the fields of a struct is not sent.
TEST(Order, HoldsTheFieldsAlone) {
  const std::size_t empty = encode_order({}).size();
  const auto bytes_of = [&](const TableOp& op) {
    Order order;
    order.ops = {op};
    return encode_order(order).size() - empty;
  };
  EXPECT_EQ(bytes_of(CommitOp{}), 1 + 8 + 4U);
  EXPECT_EQ(bytes_of(TruncateOp{}), 1 + 8 + 4 + 8 + 4U);
  EXPECT_EQ(bytes_of(FreeOp{}), 1 + 8U);
  Order order;
  order.step.resize(3);
  EXPECT_EQ(encode_order(order).size() - empty, 3 * (8 + 4 + 8 + 4 + 4U));
}

TEST(Order, EveryTruncationIsRefused) {
  const auto bytes = encode_order(example_order());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(code_of([&] { (void)decode_order(std::span(bytes).first(size)); }),
              ErrorCode::kMalformedInput)
        << size << " of " << bytes.size() << " bytes";
  }
}

TEST(Order, RefusesWhatItDoesNotKnow) {
  Order order = example_order();
  order.table.reset();
  auto bytes = encode_order(order);
  bytes.push_back({});
  EXPECT_EQ(message_of([&] { (void)decode_order(bytes); }),
            "order: bytes left after the last field");
  bytes.pop_back();
  constexpr std::size_t kFirstKind = 8 + (4 + 3 * 4) + 8 + 1 + 1 + 4;
  bytes[kFirstKind] = std::byte{9};
  EXPECT_EQ(message_of([&] { (void)decode_order(bytes); }),
            "order: operation kind is 9, expected 0 .. 8");
}

TEST(Order, ChangedBytesAreAnErrorOrAnotherOrder) {
  const auto good = encode_order(example_order());
  std::mt19937 random(3);
  int refused = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    auto bytes = good;
    for (unsigned change = 0; change <= random() % 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const ErrorCode code = code_of([&] { (void)decode_order(bytes); });
    ASSERT_TRUE(code == ErrorCode::kOk || code == ErrorCode::kMalformedInput);
    if (code != ErrorCode::kOk) ++refused;
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace tributary
