// One rank of a pool for tests of rounds: its backend and communicator, plain or deferred, and its
// copy of a table of a few sequences whose leaves are on the ranks in turn.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/local/run_ranks.h"
#include "core/base/ceil_div.h"
#include "core/base/elements.h"
#include "core/round/round.h"
#include "core/workload/generator.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/interface/deferred_backend.h"
#include "tests/core/interface/deferred_communicator.h"
#include "tests/core/round/idle_client.h"

namespace tributary::test {

inline constexpr int kLayers = 3;
inline constexpr int kLeafTokens = 64;  // a page
inline constexpr int kLeaves = 8;       // of a sequence, at most
inline constexpr AttentionShape kOrderedShape{.heads = 3,
                                              .kv_lora_rank = 16,
                                              .qk_rope_head_dim = 8,
                                              .row_format = RowFormat::kBF16,
                                              .query_dtype = DType::kF32,
                                              .softmax_scale = 0.25F};

/// Many leaves, a few, one, and none yet.
inline const std::vector<std::int64_t> kPrompts{300, 130, 63, 0};
/// New tokens of each sequence, by step; 0: it does not take part. The arenas have to grow twice.
inline const std::vector<std::vector<std::int32_t>> kSteps{
    {1, 0, 0, 2}, {3, 2, 1, 0}, {16, 9, 16, 5}};

enum class Pieces {
  kPlain,            // the backend and the communicator wait
  kDeferredBackend,  // the backend does not wait, and the communicator is not ordered with it
  kDeferred,
  kRecorded,  // likewise, and repeated work is replayed
};

/// Whether the communicator is ordered with the backend.
constexpr bool is_ordered(Pieces pieces) {
  return pieces >= Pieces::kDeferred;
}

/// A recording's room for plan data. On one rank the last step does not fit into it.
inline constexpr std::size_t kPlanRoom = 20;

/// Layer, sequence and position of the first new token, to the bytes of the merged states.
using States = std::map<std::tuple<int, SequenceId, std::int64_t>, std::vector<std::byte>>;

inline std::vector<std::byte> stored_row(SequenceId id, int layer, std::int64_t position) {
  std::vector<float> row(static_cast<std::size_t>(kOrderedShape.latent_dim()));
  TokenGenerator(1).row(static_cast<std::int64_t>(id), layer, position, row);
  std::vector<std::byte> bytes(kOrderedShape.row_bytes());
  kOrderedShape.row().encode(row, bytes.data());
  return bytes;
}

/// Its buffers are freed when a call returns, as a real client's may be.
class GeneratingClient final : public IdleClient {
 public:
  explicit GeneratingClient(Backend& backend) : backend_(backend) {}
  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                    std::byte* records, std::size_t record_bytes) override {
    for (const HomedItem& item : items) {
      const int layer = item_layer[static_cast<std::size_t>(item.item)];
      for (std::int32_t t = 0; t < item.tokens; ++t) {
        std::vector<float> query(
            static_cast<std::size_t>(kOrderedShape.heads * kOrderedShape.latent_dim()));
        TokenGenerator(1).query(item.tag, layer, item.position + t, query);
        std::vector<std::byte> record(kOrderedShape.query_bytes());
        store_elements(kOrderedShape.query_dtype, query, record.data());
        const auto row = stored_row(item.id, layer, item.position + t);
        record.insert(record.end(), row.begin(), row.end());
        backend_.upload(records + static_cast<std::size_t>(item.token_record + t) * record_bytes,
                        record);
        if (fails) throw std::runtime_error("no more tokens");
      }
    }
  }

  bool fails = false;  // in the middle of its work

 private:
  Backend& backend_;
};

/// One rank and its copy of the table, in which leaf l of every sequence is on rank l mod ranks.
class Rank {
 public:
  Rank(Pieces pieces, Exchange exchange, Communicator& threads)
      : exchange_(exchange),
        threads_(threads),
        backend_(make_backend(pieces, queue_)),
        ordered_(threads, queue_),
        client_(*backend_),
        cache_(backend_->make_cache({.layers = kLayers,
                                     .pages = static_cast<int>(kPrompts.size()) * kLeaves,
                                     .kv_lora_rank = kOrderedShape.kv_lora_rank,
                                     .qk_rope_head_dim = kOrderedShape.qk_rope_head_dim,
                                     .row_format = kOrderedShape.row_format})),
        executor_(kOrderedShape, *backend_, is_ordered(pieces) ? ordered_ : threads, *cache_) {
    for (std::size_t s = 0; s < kPrompts.size(); ++s) admit(s);
  }

  void begin_step(std::size_t step) {
    batch_.clear();
    for (std::size_t s = 0; s < kPrompts.size(); ++s) {
      const std::int32_t tokens = kSteps[step][s];
      if (tokens == 0) continue;
      extend(s, tokens);
      batch_.push_back(next_item(table_.at(s + 1), tokens));
    }
    build_routing(table_, batch_, threads_.size(), routing_);
    PlanBuilder(threads_.size(), threads_.rank(), kLeafTokens).build(routing_, exchange_, plan_);
  }
  void end_step() {
    for (const StepItem& item : batch_) table_.apply(CommitOp{item.id, item.tokens});
  }

  /// One layer of the step. The plan's list of layers is freed when it returns.
  Status run(int layer, Deadline deadline = Deadline::after(std::chrono::minutes(1))) {
    const int before = queue_.waits();
    failure_ = {};
    const Status status =
        executor_.run(plan_, item_layer(layer), client_, deadline, failure_, times_);
    waits_ = queue_.waits() - before;
    EXPECT_TRUE(queue_.empty()) << "nothing is under way after a round";
    return status;
  }
  void read(int layer, States& states) {
    const std::size_t record = kOrderedShape.state_shape().record_bytes();
    for (const HomedItem& item : plan_.homed) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(item.tokens) * record);
      backend_->download(bytes, reinterpret_cast<const std::byte*>(executor_.states()) +
                                    static_cast<std::size_t>(item.state) * record);
      states[{layer, item.id, item.position}] = std::move(bytes);
    }
  }

  [[nodiscard]] RoundExecutor& executor() noexcept { return executor_; }
  [[nodiscard]] Backend& backend() noexcept { return *backend_; }
  [[nodiscard]] const RankPlan& plan() const noexcept { return plan_; }
  /// All items of the step at `layer`.
  [[nodiscard]] std::vector<std::int32_t> item_layer(int layer) const {
    return std::vector<std::int32_t>(batch_.size(), layer);
  }
  [[nodiscard]] int rank() const noexcept { return threads_.rank(); }
  [[nodiscard]] const DeferredQueue& queue() const noexcept { return queue_; }
  [[nodiscard]] const DeferredBackend& deferred() const {
    return dynamic_cast<const DeferredBackend&>(*backend_);
  }
  [[nodiscard]] DeferredCommunicator& ordered() noexcept { return ordered_; }
  [[nodiscard]] GeneratingClient& client() noexcept { return client_; }
  /// The failure of the last run.
  [[nodiscard]] const Status& failure() const noexcept { return failure_; }
  [[nodiscard]] int waits() const noexcept { return waits_; }
  /// The times of all runs.
  [[nodiscard]] const PhaseTimes& times() const noexcept { return times_; }

 private:
  static std::unique_ptr<Backend> make_backend(Pieces pieces, DeferredQueue& queue) {
    if (pieces == Pieces::kPlain) return make_reference_backend();
    return std::make_unique<DeferredBackend>(make_reference_backend(), queue,
                                             pieces == Pieces::kRecorded ? kPlanRoom : 0);
  }
  [[nodiscard]] std::int32_t owner(std::size_t leaf) const {
    return static_cast<std::int32_t>(leaf) % threads_.size();
  }
  [[nodiscard]] static std::int32_t page(std::size_t sequence, std::size_t leaf) {
    return static_cast<std::int32_t>(sequence * kLeaves + leaf);
  }

  void admit(std::size_t s) {
    const std::int64_t length = kPrompts[s];
    Sequence sequence{.id = s + 1,
                      .epoch = 1,
                      .home = static_cast<std::int32_t>(s) % threads_.size(),
                      .tag = static_cast<std::int64_t>(s) + 1,
                      .prompt_tokens = length,
                      .limit_tokens = kLeaves * kLeafTokens,
                      .length = length,
                      .leaves = {}};
    for (std::size_t l = 0; l < kLeaves; ++l) {
      sequence.leaves.push_back({owner(l), {}});
      const auto begin = static_cast<std::int64_t>(l) * kLeafTokens;
      if (begin < length) sequence.leaves.back().pages.push_back(page(s, l));
      if (owner(l) != threads_.rank()) continue;
      for (std::int64_t p = begin; p < std::min(begin + kLeafTokens, length); ++p) {
        for (int layer = 0; layer < kLayers; ++layer) {
          backend_->store_rows(*cache_, layer, page(s, l), static_cast<std::int32_t>(p - begin),
                               stored_row(s + 1, layer, p));
        }
      }
    }
    table_.apply(AdmitOp{std::move(sequence)});
  }
  void extend(std::size_t s, std::int32_t tokens) {
    const std::int64_t length = table_.at(s + 1).length;
    for (std::int64_t l = ceil_div(length, kLeafTokens); l * kLeafTokens < length + tokens; ++l) {
      const auto leaf = static_cast<std::size_t>(l);
      table_.apply(ExtendOp{s + 1, static_cast<std::int32_t>(l), owner(leaf), {page(s, leaf)}});
    }
  }

  Exchange exchange_;
  Communicator& threads_;
  DeferredQueue queue_;
  std::unique_ptr<Backend> backend_;
  DeferredCommunicator ordered_;
  GeneratingClient client_;
  std::unique_ptr<Cache> cache_;
  RoundExecutor executor_;
  SequenceTable table_{kLeafTokens};
  std::vector<StepItem> batch_;
  Routing routing_;
  RankPlan plan_;
  PhaseTimes times_{};
  Status failure_;
  int waits_ = 0;
};

/// Runs `body` on every rank, then checks that no memory was freed while queued work could use it.
inline void on_ranks(int ranks, Pieces pieces, Exchange exchange,
                     const std::function<void(Rank&)>& body) {
  run_ranks(ranks, [&](Communicator& threads) {
    Rank rank(pieces, exchange, threads);
    body(rank);
    EXPECT_EQ(rank.queue().hazards(), 0);
  });
}

/// The parameters of a suite over numbers of ranks and exchanges.
inline const auto kRanksAndExchanges = testing::Combine(
    testing::Values(1, 2, 4), testing::Values(Exchange::kAllGather, Exchange::kAllToAll));
inline std::string ranks_and_exchange(
    const testing::TestParamInfo<std::tuple<int, Exchange>>& info) {
  return fmt::format("Ranks{}{}", std::get<0>(info.param),
                     std::get<1>(info.param) == Exchange::kAllGather ? "AllGather" : "AllToAll");
}

}  // namespace tributary::test
