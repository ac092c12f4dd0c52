// Which messages may go out on a connection, by the tokens that its worker has judged.
#include "deploy/service/client/proven_sequences.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

using Standing = ProvenSequences::Standing;

constexpr wire::Token kRight{1};
constexpr wire::Token kForged{};

wire::ProveReply judgement(std::initializer_list<bool> right) {
  wire::ProveReply reply;
  for (const bool one : right) {
    reply.items.push_back({one ? ErrorCode::kOk : ErrorCode::kPermissionDenied});
  }
  return reply;
}

TEST(ProvenSequences, TheTokenThatOpenedTheConnectionIsRight) {
  ProvenSequences sequences;
  sequences.opened(7, kRight);
  EXPECT_EQ(sequences.standing(7, kRight), Standing::kProven);
  EXPECT_EQ(sequences.standing(7, kForged), Standing::kOther);
  EXPECT_EQ(sequences.standing(8, kRight), Standing::kUnknown);
}

TEST(ProvenSequences, AnotherTokenWaitsForTheJudgementOfTheFirst) {
  ProvenSequences sequences;
  for (const std::uint64_t id : {7, 8}) sequences.asked(id, kForged);
  sequences.asked(9, kRight);
  EXPECT_EQ(sequences.standing(7, kForged), Standing::kAsked);
  EXPECT_EQ(sequences.standing(7, kRight), Standing::kUndecided);
  sequences.judged(judgement({false, false}));
  EXPECT_EQ(sequences.standing(7, kForged), Standing::kUnknown);
  EXPECT_EQ(sequences.standing(7, kRight), Standing::kUnknown);
  EXPECT_EQ(sequences.standing(9, kRight), Standing::kAsked);
  EXPECT_EQ(sequences.standing(9, kForged), Standing::kUndecided);
  sequences.asked(7, kRight);
  sequences.judged(judgement({true, true}));
  for (const std::uint64_t id : {7, 9}) {
    EXPECT_EQ(sequences.standing(id, kRight), Standing::kProven);
    EXPECT_EQ(sequences.standing(id, kForged), Standing::kOther);
  }
}

TEST(ProvenSequences, MoreJudgementsThanProofsAreMalformed) {
  ProvenSequences sequences;
  sequences.asked(7, kRight);
  EXPECT_EQ(code_of([&] {
              sequences.judged(judgement({true, true}));
            }),
            ErrorCode::kMalformedInput);
}

TEST(ProvenSequences, NothingIsForgotten) {
  ProvenSequences sequences;
  for (std::uint64_t id = 0; id < ProvenSequences::kMost; ++id) {
    EXPECT_FALSE(sequences.full());
    sequences.opened(id, kRight);
  }
  EXPECT_TRUE(sequences.full());
  EXPECT_EQ(sequences.standing(0, kForged), Standing::kOther);
}

}  // namespace
}  // namespace tributary
