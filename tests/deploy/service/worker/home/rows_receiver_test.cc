#include "deploy/service/worker/home/rows_receiver.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

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

}  // namespace
}  // namespace tributary
