#include "bench/random_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"
#include "core/plan/merge_tree.h"
#include "deploy/app/bench/decode_case.h"
#include "kernels/cpu/thread_pool.h"

namespace tributary::bench {
namespace {

constexpr int kSelected = 2048;
// Lists that take turns, so that a list's rows (2.4 MB) have left the caches when it comes again.
constexpr int kLists = 64;
// Lists a measurement, long enough for the clock.
constexpr int kTogether = 4;
constexpr std::array kLeaves{65'536, 32'768, 16'384, 8192, 4096, 2048};
constexpr std::size_t kRowBytes = kLatent * sizeof(bf16);

/// One sequence with pages at random places.
class Sequence {
 public:
  Sequence(Backend& backend, int heads, int length)
      : backend_(backend), heads_(heads), length_(length), item_layer_{0} {
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    const auto halves = [&](std::size_t count) {
      std::vector<bf16> values(count);
      for (bf16& value : values) value = to_bf16(normal(random));
      return values;
    };
    table_.resize(static_cast<std::size_t>(ceil_div(length, kPageTokens)));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random);
    const auto pages = static_cast<std::int32_t>(table_.size());
    cache_ = backend.make_cache({1, pages, kRank, kRope, RowFormat::kBF16});
    const std::vector<bf16> rows = halves(std::size_t{kPageTokens} * kLatent);
    for (std::int32_t page = 0; page < pages; ++page) {
      backend.store_rows(*cache_, 0, page, 0, std::as_bytes(std::span(rows)));
    }
    const std::vector<bf16> query = halves(static_cast<std::size_t>(heads) * kLatent);
    query_ = backend.allocate(query.size() * sizeof(bf16));
    backend.upload(query_->data(), std::as_bytes(std::span(query)));
    lists_ = backend.allocate(std::size_t{kLists} * kSelected * sizeof(std::int32_t));
    std::vector<std::int32_t> all(static_cast<std::size_t>(length));
    std::iota(all.begin(), all.end(), 0);
    for (int list = 0; list < kLists; ++list) {
      std::vector<std::int32_t> drawn;
      std::ranges::sample(all, std::back_inserter(drawn), kSelected, random);
      std::ranges::copy(drawn, lists_->as<std::int32_t>() + std::ptrdiff_t{list} * kSelected);
    }
  }

  /// The rows of a list, in leaves of `leaf_tokens` whose states are merged.
  void attend_selected(int list, int leaf_tokens) {
    tasks_.clear();
    merges_.clear();
    for (int begin = 0; begin < length_; begin += leaf_tokens) {
      add_task(begin, std::min(leaf_tokens, length_ - begin));
    }
    call({.data = selected(list),
          .stride_bytes = kSelected * sizeof(std::int32_t),
          .most = kSelected});
    if (tasks_.size() == 1) return;
    std::vector<NodeState> leaves;
    for (const LeafTask& task : tasks_) {
      leaves.push_back({{0, static_cast<std::int32_t>(task.state)}, task.state});
    }
    merges_.add(leaves, tree_height(std::ssize(leaves)), 0, 1);
    for (const std::vector<MergeOp>& ops : merges_.levels()) {
      backend_.call(MergeArgs{.ops = ops,
                              .shape = {heads_, kRank},
                              .states = states_->as<float>(),
                              .levels = static_cast<int>(merges_.levels().size())});
    }
  }
  /// As many rows in sequence, in one leaf.
  void attend_in_sequence(int list) {
    tasks_.clear();
    add_task(list % (length_ / kSelected) * kSelected, kSelected);
    call({});
  }
  /// Copies the rows of a list, row by row.
  void copy(int list, cpu::ThreadPool& pool) {
    const auto threads = static_cast<std::size_t>(pool.threads());
    copies_.resize(threads * kSelected * kRowBytes);
    pool.for_each(threads, [&](std::size_t unit, int thread) {
      std::byte* to = copies_.data() + static_cast<std::size_t>(thread) * kSelected * kRowBytes;
      for (std::size_t i = unit * kSelected / threads; i < (unit + 1) * kSelected / threads; ++i) {
        const auto row = static_cast<std::size_t>(selected(list)[i]);
        const std::span page = backend_.host_page(*cache_, 0, table_[row / kPageTokens]);
        std::memcpy(to, page.data() + row % kPageTokens * kRowBytes, kRowBytes);
        to += kRowBytes;
      }
    });
  }

 private:
  [[nodiscard]] const std::int32_t* selected(int list) const {
    return lists_->as<std::int32_t>() + std::ptrdiff_t{list} * kSelected;
  }
  void add_task(int begin, int rows) {
    tasks_.push_back({.tokens = 1,
                      .rows = rows,
                      .first_page = begin / kPageTokens,
                      .leaf_begin = begin,
                      .query_position = length_ - 1,
                      .state = static_cast<std::int64_t>(tasks_.size())});
  }
  void call(const SelectedRows& selection) {
    const StateShape shape{heads_, kRank};
    if (states_ == nullptr || states_->bytes() < tasks_.size() * shape.record_bytes()) {
      states_ = backend_.allocate(tasks_.size() * shape.record_bytes());
    }
    backend_.call(
        AttendArgs{.cache = cache_.get(),
                   .tasks = tasks_,
                   .block_table = table_,
                   .item_layer = item_layer_,
                   .queries = query_->data(),
                   .query_stride_bytes = static_cast<std::size_t>(heads_) * kLatent * sizeof(bf16),
                   .query_dtype = DType::kBF16,
                   .heads = heads_,
                   .softmax_scale = 0.0417F,
                   .states = states_->as<float>(),
                   .selected = selection});
  }

  Backend& backend_;
  int heads_, length_;
  std::vector<std::int32_t> item_layer_, table_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Buffer> query_, lists_, states_;
  std::vector<LeafTask> tasks_;
  MergeSchedule merges_;
  std::vector<std::byte> copies_;
};

}  // namespace

void random_rows(Machine& machine, Backend& backend, std::span<const int> heads,
                 std::span<const int> lengths) {
  fmt::print("\n{} random rows, ns a row, {} thread(s):\n", kSelected, machine.threads());
  cpu::ThreadPool pool(machine.threads());
  for (const int head_count : heads) {
    for (const int length : lengths) {
      if (length < kSelected) continue;
      Sequence sequence(backend, head_count, length);
      int turn = 0;
      const auto together = [&turn](const std::function<void(int)>& one) {
        return [&turn, one] {
          for (int i = 0; i < kTogether; ++i) one(turn++ % kLists);
        };
      };
      std::vector<std::function<void()>> works{
          together([&](int list) { sequence.attend_selected(list, length); }),
          together([&](int list) { sequence.attend_in_sequence(list); }),
          together([&](int list) { sequence.copy(list, pool); })};
      const std::size_t compared = works.size();
      for (const int leaf : kLeaves) {
        works.push_back(together([&, leaf](int list) { sequence.attend_selected(list, leaf); }));
      }
      const auto figures = machine.measure(works);
      if (figures[0].rounds == 0) {
        fmt::print("{:3} heads, {:6} rows: all {} rounds were disturbed\n", head_count, length,
                   figures[0].dropped);
        continue;
      }
      const auto ns = [&](std::size_t i) {
        return figures[i].seconds * 1e9 / kTogether / kSelected;
      };
      fmt::print(
          "{:3} heads, {:6} rows: {:6.0f}; in sequence {:6.0f}: {:.2f} x, copied {:5.0f}: {:.2f} x "
          "the longer; in leaves, with their merges,",
          head_count, length, ns(0), ns(1), ns(0) / ns(1), ns(2), ns(0) / std::max(ns(1), ns(2)));
      for (std::size_t i = 0; i < kLeaves.size(); ++i) {
        fmt::print(" of {} {:.0f},", kLeaves[i], ns(compared + i));
      }
      fmt::print(" ({} rounds, {} dropped)\n", figures[0].rounds, figures[0].dropped);
    }
  }
}

}  // namespace tributary::bench
