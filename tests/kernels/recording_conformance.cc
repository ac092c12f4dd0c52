// Recorded calls: recorded, refilled and replayed, they do what the same calls do one by one.
#include <gmock/gmock.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/expect_error.h"
#include "tests/kernels/backend_conformance.h"

namespace tributary::test {
namespace {

constexpr int kRecordingHeads = 3;
constexpr CacheLayout kRecordingLayout{
    .layers = 2, .pages = 5, .kv_lora_rank = 16, .qk_rope_head_dim = 8};
constexpr int kRecordingDim = 24;  // of a latent row
constexpr std::size_t kTokens = 6;
constexpr std::size_t kStates = 24;
constexpr StateShape kRecordingState{kRecordingHeads, 16};

/// The plan data of one round: `leaves` leaves, one for each token and more for the last.
struct RoundPlan {
  explicit RoundPlan(std::int32_t leaves, std::int32_t turn = 0) : layer{turn % 2} {
    for (std::int32_t leaf = 0; leaf < leaves; ++leaf) {
      const std::int32_t token = leaf % static_cast<std::int32_t>(kTokens);
      if (leaf == token) appends.push_back({0, (leaf + turn) % 5, 7 + turn + leaf, leaf});
      tasks.push_back({.tokens = 1,
                       .rows = 10 + leaf + turn,
                       .first_page = leaf,
                       .query_position = 100,
                       .query = token,
                       .state = leaf});
      block_table.push_back((leaf + turn) % 5);
      index.push_back((leaf * 5 + turn) % leaves);
      positions.push_back(3 * leaf + turn);
    }
    positions.resize(kTokens, 11);
    for (std::int64_t left = 0; left + 1 < leaves; left += 2) {
      merges.push_back({.dst = left, .left = left, .right = left + 1, .tokens = 1});
    }
  }

  std::vector<std::int32_t> layer;
  std::vector<AppendTask> appends;
  std::vector<LeafTask> tasks;
  std::vector<std::int32_t> block_table;
  std::vector<MergeOp> merges;
  std::vector<std::int64_t> index;
  std::vector<std::int64_t> positions;
};

/// A round and a layer's other operations, on memory of their own that always begins the same.
class Round {
 public:
  explicit Round(Backend& backend)
      : backend_(backend),
        cache_(backend.make_cache(kRecordingLayout)),
        weight_(backend.make_weight({.data = numbers(1, kRecordingDim * kRecordingDim).data(),
                                     .rows = kRecordingDim,
                                     .cols = kRecordingDim,
                                     .row_stride = kRecordingDim})),
        rows_(upload(numbers(2, kTokens * kRecordingDim), DType::kBF16)),
        queries_(upload(numbers(3, kTokens * kRecordingHeads * kRecordingDim), DType::kBF16)),
        norm_(upload(numbers(4, kRecordingDim), DType::kF32)),
        x_(upload(numbers(5, kTokens * kRecordingDim), DType::kF32)),
        y_(upload(std::vector<float>(kTokens * kRecordingDim), DType::kF32)),
        states_(upload(std::vector<float>(2 * kStates * kRecordingState.record_floats()),
                       DType::kF32)) {
    const auto page = to_bytes(numbers(6, kPageTokens * kRecordingDim), DType::kBF16);
    for (int layer = 0; layer < kRecordingLayout.layers; ++layer) {
      for (int p = 0; p < kRecordingLayout.pages; ++p) {
        backend_.store_rows(*cache_, layer, p, 0, page);
      }
    }
  }

  /// The plan must outlive them.
  [[nodiscard]] std::vector<Call> calls(const RoundPlan& plan) const {
    const auto tokens = static_cast<std::int64_t>(kTokens);
    return {
        AppendArgs{.cache = cache_.get(),
                   .tasks = plan.appends,
                   .item_layer = plan.layer,
                   .source = rows_->data(),
                   .source_stride_bytes = kRecordingLayout.row_bytes()},
        AttendArgs{.cache = cache_.get(),
                   .tasks = plan.tasks,
                   .block_table = plan.block_table,
                   .item_layer = plan.layer,
                   .queries = queries_->data(),
                   .query_stride_bytes = kRecordingHeads * kRecordingDim * 2,
                   .query_dtype = DType::kBF16,
                   .heads = kRecordingHeads,
                   .softmax_scale = 0.3F,
                   .states = states_->as<float>()},
        MergeArgs{plan.merges, kRecordingState, states_->as<float>()},
        GatherArgs{plan.index, states_->data(),
                   states_->data() + kStates * kRecordingState.record_bytes(),
                   kRecordingState.record_bytes()},
        RmsNormArgs{.tokens = tokens,
                    .width = kRecordingDim,
                    .x = x_->as<float>(),
                    .x_token_stride = kRecordingDim,
                    .weight = norm_->as<float>(),
                    .eps = 1e-6F,
                    .y = y_->as<float>(),
                    .y_token_stride = kRecordingDim},
        GemmArgs{.weight = weight_.get(),
                 .tokens = tokens,
                 .x = y_->as<float>(),
                 .x_token_stride = kRecordingDim,
                 .y = x_->as<float>(),
                 .y_token_stride = kRecordingDim},
        RopeArgs{.positions = std::span(plan.positions).first(kTokens),
                 .frequencies = frequencies_,
                 .heads = 1,
                 .x = x_->as<float>(),
                 .x_token_stride = kRecordingDim,
                 .x_head_stride = kRecordingDim,
                 .y = x_->as<float>(),
                 .y_token_stride = kRecordingDim,
                 .y_head_stride = kRecordingDim},
        ConvertArgs{.rows = tokens,
                    .src = x_->data(),
                    .src_row = plain_row(kRecordingDim),
                    .src_stride_bytes = kRecordingDim * sizeof(float),
                    .dst = rows_->data(),
                    .dst_row = kRecordingLayout.row(),
                    .dst_stride_bytes = kRecordingLayout.row_bytes()},
    };
  }
  void make(const RoundPlan& plan) { backend_.call(calls(plan)); }

  /// Everything that calls write, except the cache, which attention has read.
  [[nodiscard]] std::vector<std::byte> memory() {
    std::vector<std::byte> all;
    for (const Buffer* buffer : {rows_.get(), x_.get(), y_.get(), states_.get()}) {
      std::vector<std::byte> bytes(buffer->bytes());
      backend_.download(bytes, buffer->data());
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }

 private:
  static std::vector<float> numbers(std::uint32_t seed, std::size_t count) {
    return Normal(seed).floats(count);
  }
  std::unique_ptr<Buffer> upload(const std::vector<float>& values, DType type) {
    const std::vector<std::byte> bytes = to_bytes(values, type);
    auto buffer = backend_.allocate(bytes.size());
    backend_.upload(buffer->data(), bytes);
    return buffer;
  }

  Backend& backend_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Weight> weight_;
  std::unique_ptr<Buffer> rows_, queries_, norm_, x_, y_, states_;
  std::vector<double> frequencies_ = std::vector<double>(kRecordingDim / 2, 0.5);
};

/// The results of `plans`, one after the other, with single calls.
std::vector<std::byte> one_by_one(Backend& backend, const std::vector<RoundPlan>& plans) {
  Round round(backend);
  for (const RoundPlan& plan : plans) round.make(plan);
  return round.memory();
}

void expect_refused(ErrorCode code, const char* word, const std::function<void()>& call) {
  const Status status = status_of(call);
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_THAT(status.message(), testing::HasSubstr(word));
}

/// Null for a backend whose calls are cheap enough not to be recorded.
std::unique_ptr<Recording> record(Backend& backend, std::span<const Call> calls) {
  auto recording = backend.record(calls);
  EXPECT_EQ(recording == nullptr, backend.host_memory()) << "a device records";
  return recording;
}

TEST_P(BackendConformance, ReplaysAreTheCallsOneByOne) {
  Round round(backend());
  const auto recording = record(backend(), round.calls(RoundPlan(6)));
  if (recording == nullptr) return;
  EXPECT_EQ(round.memory(), one_by_one(backend(), {})) << "recording is not doing";
  backend().replay(*recording);
  EXPECT_EQ(round.memory(), one_by_one(backend(), {RoundPlan(6)}));
  backend().replay(*recording);
  EXPECT_EQ(round.memory(), one_by_one(backend(), {RoundPlan(6), RoundPlan(6)}));
}

TEST_P(BackendConformance, ReplaysThatWereRefilledAreTheNewCalls) {
  Round round(backend());
  const auto recording = record(backend(), round.calls(RoundPlan(6)));
  if (recording == nullptr) return;
  // Fewer tasks, more tasks, other pages, another layer; and nobody waits in between.
  std::vector<RoundPlan> plans;
  for (std::int32_t turn = 0; turn < 20; ++turn) {
    plans.emplace_back(2 + (turn * 7) % 12, turn);
    ASSERT_TRUE(backend().refill(*recording, round.calls(RoundPlan(plans.back())))) << turn;
    backend().replay(*recording);
    if (turn % 4 == 0) {  // calls beside it
      plans.emplace_back(3, turn + 1);
      round.make(plans.back());
    }
  }
  EXPECT_EQ(round.memory(), one_by_one(backend(), plans));
}

TEST_P(BackendConformance, ARefillThatDoesNotFitChangesNothing) {
  Round round(backend());
  Round other(backend());
  const auto recording = record(backend(), round.calls(RoundPlan(2)));
  if (recording == nullptr) return;
  EXPECT_FALSE(backend().refill(*recording, round.calls(RoundPlan(kStates)))) << "too many";
  EXPECT_FALSE(backend().refill(*recording, other.calls(RoundPlan(2)))) << "other buffers";
  EXPECT_FALSE(backend().refill(*recording, {})) << "no calls";
  const RoundPlan again(2);
  std::vector<Call> more = round.calls(again);
  more.push_back(more.front());
  EXPECT_FALSE(backend().refill(*recording, more)) << "more calls";
  EXPECT_EQ(round.memory(), one_by_one(backend(), {})) << "nothing was done";
  backend().replay(*recording);
  EXPECT_EQ(round.memory(), one_by_one(backend(), {RoundPlan(2)}));
}

TEST_P(BackendConformance, RecordingsThatEndLeaveTheirReplaysAndTheOthersAlone) {
  Round round(backend());
  std::vector<RoundPlan> plans;
  std::unique_ptr<Recording> kept;
  for (std::int32_t turn = 0; turn < 6; ++turn) {
    plans.emplace_back(4, turn);
    auto recording = record(backend(), round.calls(plans.back()));
    if (recording == nullptr) return;
    backend().replay(*recording);
    if (turn == 2) kept = std::move(recording);
  }
  plans.emplace_back(4, 2);
  backend().replay(*kept);
  EXPECT_EQ(round.memory(), one_by_one(backend(), plans));
}

TEST_P(BackendConformance, ABadCallEndsARecordingAndTheBackendGoesOn) {
  Round round(backend());
  const RoundPlan good(2);
  const auto recording = record(backend(), round.calls(good));
  if (recording == nullptr) return;
  RoundPlan bad(2);
  bad.tasks[0].rows = 0;
  const auto refused = [&](const char* word, const std::vector<Call>& calls) {
    expect_refused(ErrorCode::kInvalidArgument, word, [&] { (void)backend().record(calls); });
    expect_refused(ErrorCode::kInvalidArgument, word,
                   [&] { (void)backend().refill(*recording, calls); });
  };
  refused("rows is 0", round.calls(bad));
  // Found by the backend itself, in the middle of the list.
  const auto other = GetParam().make();
  Round stranger(*other);
  std::vector<Call> calls = round.calls(good);
  calls.push_back(stranger.calls(good).front());
  refused("cache was not made", calls);
  EXPECT_EQ(round.memory(), one_by_one(backend(), {})) << "nothing was done";
  backend().replay(*recording);
  EXPECT_EQ(round.memory(), one_by_one(backend(), {RoundPlan(2)}));
}

TEST_P(BackendConformance, ARecordingOfAnotherBackendIsRefused) {
  const auto other = GetParam().make();
  const auto recording = other->record({});
  if (recording == nullptr) return;
  expect_refused(ErrorCode::kInvalidArgument, "recording", [&] { backend().replay(*recording); });
  expect_refused(ErrorCode::kInvalidArgument, "recording",
                 [&] { (void)backend().refill(*recording, {}); });
}

}  // namespace
}  // namespace tributary::test
