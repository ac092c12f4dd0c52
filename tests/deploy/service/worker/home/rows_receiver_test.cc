#include "deploy/service/worker/home/rows_receiver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/wire/crc32c.h"
#include "core/base/error.h"
#include "kernels/reference/reference_backend.h"

namespace tributary {
namespace {

constexpr SequenceId kSequence = 7;
constexpr PeerId kSender = 3;

class RowsReceiverTest : public testing::Test {
 protected:
  RowsReceiverTest() {
    table_.open({.id = kSequence,
                 .epoch = 1,
                 .prompt_tokens = kPageTokens,
                 .limit_tokens = kPageTokens + 1,
                 .length = kPageTokens,
                 .leaves = {{.owner = 0, .pages = {0}}}});
  }

  /// One row, at `position`.
  Landing announce(std::int64_t position) {
    const wire::Rows rows{.request = 1,
                          .sequence_id = kSequence,
                          .epoch = 1,
                          .layer = 0,
                          .begin = position,
                          .count = 1,
                          .crc32c = 0};
    return receiver_.receive(kSender, rows, true, cache_->layout().row_bytes()).value();
  }

  std::unique_ptr<Backend> backend_ = make_reference_backend();
  std::unique_ptr<Cache> cache_ = backend_->make_cache({.layers = 1,
                                                        .pages = 1,
                                                        .kv_lora_rank = 16,
                                                        .qk_rope_head_dim = 8,
                                                        .row_format = RowFormat::kF32});
  IngestTable table_{0, 1, kPageTokens};
  std::vector<wire::RowsReply> replies_;
  RowsReceiver receiver_{0,
                         table_,
                         *backend_,
                         *cache_,
                         {.reply = [this](PeerId, const auto& reply) { replies_.push_back(reply); },
                          .progress = [](const wire::Progress&) {}},
                         steady_clock()};
};

TEST_F(RowsReceiverTest, ASenderMayFinishWhatItBeganUntilTheNextCallAfterTheEnd) {
  const Landing slow = announce(0);
  const Landing slow_too = announce(2);
  const Landing quick = announce(1);
  EXPECT_TRUE(receiver_.late_senders().empty());  // the sequence is open
  EXPECT_TRUE(receiver_.late_senders().empty());
  table_.close(kSequence, 5);
  EXPECT_TRUE(receiver_.late_senders().empty());
  quick.done({});
  EXPECT_EQ(receiver_.late_senders(), std::vector<PeerId>{kSender});
  EXPECT_EQ(table_.drained_round(), 4U);
  slow.done({ErrorCode::kUnavailable, "closed"});
  slow_too.done({ErrorCode::kUnavailable, "closed"});
  EXPECT_TRUE(receiver_.late_senders().empty());
  EXPECT_EQ(table_.drained_round(), UINT64_MAX);
  EXPECT_EQ(replies_.size(), 3U);
  for (const wire::RowsReply& reply : replies_) EXPECT_NE(reply.outcome.code, ErrorCode::kOk);
}

TEST(RowsReceiver, RowsWithAScaleThatIsNoneAreRefusedBeforeAnythingIsReadable) {
  const RowLayout layout{RowFormat::kFp8DsMla, 128, 2};
  const auto backend = make_reference_backend();
  const auto cache = backend->make_cache({.layers = 1,
                                          .pages = 1,
                                          .kv_lora_rank = layout.kv_lora_rank,
                                          .qk_rope_head_dim = layout.qk_rope_head_dim,
                                          .row_format = layout.format});
  IngestTable table(0, 1, kPageTokens);
  table.open({.id = kSequence,
              .epoch = 1,
              .prompt_tokens = 2,
              .limit_tokens = 3,
              .length = 2,
              .leaves = {{.owner = 0, .pages = {0}}}});
  std::vector<wire::RowsReply> replies;
  std::vector<wire::Progress> progress;
  RowsReceiver receiver(0, table, *backend, *cache,
                        {.reply = [&](PeerId, const auto& reply) { replies.push_back(reply); },
                         .progress = [&](const wire::Progress& now) { progress.push_back(now); }},
                        steady_clock());
  std::vector<std::byte> rows(2 * layout.bytes());
  layout.encode(std::vector<float>(2 * layout.values(), 1.5F), rows.data());
  const auto send = [&] {
    const Landing landing = receiver
                                .receive(kSender,
                                         {.request = 1,
                                          .sequence_id = kSequence,
                                          .epoch = 1,
                                          .layer = 0,
                                          .begin = 0,
                                          .count = 2,
                                          .crc32c = wire::crc32c(rows)},
                                         true, rows.size())
                                .value();
    ASSERT_EQ(landing.pieces.size(), 1U);
    std::ranges::copy(rows, landing.pieces[0].begin());
    landing.inspect(rows);
    landing.done({});
  };
  const float negative = -1;
  std::vector<std::byte> good = rows;
  std::memcpy(rows.data() + layout.bytes() + 128, &negative, sizeof negative);
  send();
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].outcome.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(replies[0].outcome.message,
            "layer 0, rows from 0: row 1: scale 0 is -1, must be positive and finite");
  EXPECT_TRUE(progress.empty());
  wire::Beat beat;
  receiver.add_counts(beat);
  EXPECT_EQ(beat.refused[static_cast<std::size_t>(wire::Refusal::kMalformed)], 1U);
  EXPECT_EQ(beat.ingested_rows, 0U);
  rows = good;
  send();
  ASSERT_EQ(replies.size(), 2U);
  EXPECT_EQ(replies[1].outcome.code, ErrorCode::kOk);
  ASSERT_EQ(progress.size(), 1U);
  EXPECT_EQ(progress[0].rows_done, 2);
}

}  // namespace
}  // namespace tributary
