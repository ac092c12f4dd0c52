#include "deploy/local/local_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/base/error.h"
#include "core/interface/manual_clock.h"
#include "deploy/service/client/tier_client.h"

namespace tributary {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

/// A pool that answers when the test says so.
class LocalControlTest : public testing::Test {
 protected:
  void SetUp() override {
    RegisterPool pool;
    pool.name = "local";
    pool.run = "run";
    pool.transport = "local";
    pool.shape.heads = 4;
    pool.shape.kv_lora_rank = 128;
    pool.shape.qk_rope_head_dim = 16;
    pool.shape.layers = 1;
    pool.shape.leaf_tokens = 64;
    pool.pages_per_worker = 10;
    pool.lease_ms = 1000;
    pool.workers.push_back({.rank = 0, .host = "here", .address = "local://x:1", .backend = "cpu"});
    channel_ = control_.connect(pool, {.request = [this](ToPool asked) { return take(asked); },
                                       .describe = [](RegisterPool&) {},
                                       .heartbeat = [] { return Heartbeat{}; },
                                       .terminate = [this] { terminated_ = true; },
                                       .refused = {},
                                       .log = {}});
  }

  bool take(const ToPool& asked) {
    if (behind_) return false;
    asked_.push_back(asked);
    return true;
  }
  /// Admits what was asked for last.
  void answer() {
    const auto& admit = std::get<Admit>(asked_.back());
    SequenceInfo info;
    info.id = admit.id;
    info.prompt_tokens = admit.wanted.prompt_tokens;
    info.max_new_tokens = admit.wanted.max_new_tokens;
    info.extents.push_back({0, admit.wanted.prompt_tokens, 0});
    channel_->tell(PoolReply{admit.request, ErrorCode::kOk, "", info});
  }
  Status admit(const AdmitRequest& request, std::chrono::seconds timeout) {
    return status_of(
        [&] { sequence_ = control_.admit(request, Deadline::after(clock_.now(), timeout)); });
  }

  bool behind_ = false;
  bool terminated_ = false;
  std::vector<ToPool> asked_;
  SequenceHandle sequence_;
  ManualClock clock_;
  LocalControl control_{clock_};
  std::unique_ptr<ControlChannel> channel_;
};

TEST_F(LocalControlTest, RefusesAsTheServiceDoes) {
  EXPECT_EQ(admit({.prompt_tokens = -1}, seconds(30)).code(), ErrorCode::kMalformedInput);
  EXPECT_EQ(admit({.prompt_tokens = 641}, seconds(30)).code(), ErrorCode::kTooLarge);
  behind_ = true;
  EXPECT_EQ(admit({.prompt_tokens = 1}, seconds(30)).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(
      status_of([&] { (void)control_.query(7, Deadline(clock_.now() + seconds(30))); }).code(),
      ErrorCode::kNotFound);
  control_.terminate();
  EXPECT_TRUE(terminated_);
}

TEST_F(LocalControlTest, AnAnswerByTheDeadlineIsInTime) {
  clock_.after(seconds(30), [this] { answer(); });
  EXPECT_TRUE(admit({.prompt_tokens = 5}, seconds(30)).ok());
  EXPECT_EQ(clock_.now(), Time() + seconds(30));
  EXPECT_EQ(sequence_.prompt_tokens, 5);
}

TEST_F(LocalControlTest, WhatNobodyWaitsForAnyMoreIsFreed) {
  const Status late = admit({.prompt_tokens = 5, .idempotency_key = "a"}, seconds(30));
  EXPECT_EQ(clock_.now(), Time() + seconds(30));
  EXPECT_EQ(late.code(), ErrorCode::kDeadlineExceeded);
  ASSERT_EQ(asked_.size(), 1U);
  const SequenceId id = std::get<Admit>(asked_.back()).id;
  answer();
  ASSERT_EQ(asked_.size(), 2U);
  EXPECT_EQ(std::get<Free>(asked_.back()).id, id);
}

TEST_F(LocalControlTest, ThePoolsEndIsTheAnswer) {
  EXPECT_EQ(admit({.prompt_tokens = 5}, seconds(30)).code(), ErrorCode::kDeadlineExceeded);
  channel_.reset();
  control_.lose({ErrorCode::kWorkerFailed, "rank 1: out of paper"});
  const Status lost = admit({.prompt_tokens = 5}, seconds(30));
  EXPECT_EQ(lost.code(), ErrorCode::kPoolLost);
  EXPECT_EQ(lost.message(), "the pool has ended: rank 1: out of paper");
  control_.terminate();
  EXPECT_FALSE(terminated_);
}

}  // namespace
}  // namespace tributary
