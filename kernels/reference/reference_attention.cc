// Softmax attention over a leaf, the same over a dense chunk, and the merge of partial states, in
// float64.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "core/base/elements.h"
#include "core/interface/selected_rows.h"
#include "core/interface/visible_rows.h"
#include "kernels/reference/reference_ops.h"

namespace tributary::reference {
namespace {

constexpr double kEmpty = -std::numeric_limits<double>::infinity();

// Computes a softmax-weighted mean: first all scores are added, then all values.
class Accumulator {
 public:
  void add_score(double score) { scores_.push_back(score); }

  // `value(j)` gives the values of the j-th score. Writes o[width] and lse.
  template <typename Value>
  void finish(std::size_t width, const Value& value, float* o, float* lse) {
    std::vector<double> sum(width, 0.0);
    double max = kEmpty;
    for (const double score : scores_) max = std::max(max, score);
    double weights = 0;
    for (std::size_t j = 0; j < scores_.size(); ++j) {
      const double weight = std::exp(scores_[j] - max);
      weights += weight;
      const std::span<const double> row = value(j);
      for (std::size_t c = 0; c < width; ++c) sum[c] += weight * row[c];
    }
    for (std::size_t c = 0; c < width; ++c) {
      o[c] = scores_.empty() ? 0.0F : static_cast<float>(sum[c] / weights);
    }
    *lse = static_cast<float>(scores_.empty() ? kEmpty : max + std::log(weights));
    scores_.clear();
  }

 private:
  std::vector<double> scores_;
};

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// The rows of the task's leaf that its new token `token` attends to.
std::vector<std::size_t> attended_rows(const AttendArgs& args, const LeafTask& task,
                                       std::int32_t token) {
  std::vector<std::size_t> rows;
  if (args.selected.most == 0) {
    rows.resize(static_cast<std::size_t>(visible_rows(task, token)));
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    return rows;
  }
  for (const std::int32_t position : selected_rows(args, task, token)) {
    rows.push_back(static_cast<std::size_t>(position - task.leaf_begin));
  }
  return rows;
}

std::vector<double> widen(const float* data, std::size_t count) {
  return {data, data + count};
}

}  // namespace

void attend(const HostCache& cache, const AttendArgs& args) {
  const CacheLayout& layout = cache.layout();
  const auto latent = static_cast<std::size_t>(layout.latent_dim());
  const auto rank = static_cast<std::size_t>(layout.kv_lora_rank);
  const auto heads = static_cast<std::size_t>(args.heads);
  const StateShape shape{args.heads, layout.kv_lora_rank};
  std::vector<double> rows;
  std::vector<double> query(latent);
  std::vector<float> values(latent);
  Accumulator accumulator;
  for (const LeafTask& task : args.tasks) {
    const std::byte* layer = cache.layer_data(args.item_layer[static_cast<std::size_t>(task.item)]);
    // Only the rows that the last token sees: later rows may hold anything.
    const auto seen = static_cast<std::size_t>(visible_rows(task, task.tokens - 1));
    rows.resize(seen * latent);
    const auto row = [&](std::size_t j) { return std::span(rows).subspan(j * latent, latent); };
    for (std::size_t j = 0; j < seen; ++j) {
      const auto entry = static_cast<std::size_t>(task.first_page) + j / kPageTokens;
      const auto page = static_cast<std::size_t>(args.block_table[entry]);
      layout.row().decode(layer + page * cache.page_bytes() + (j % kPageTokens) * cache.row_bytes(),
                          values);
      std::ranges::copy(values, row(j).begin());
    }
    for (std::int32_t token = 0; token < task.tokens; ++token) {
      const std::vector<std::size_t> attended = attended_rows(args, task, token);
      const std::byte* record =
          args.queries + static_cast<std::size_t>(task.query + token) * args.query_stride_bytes;
      float* state =
          args.states + static_cast<std::size_t>(task.state + token) * shape.record_floats();
      for (std::size_t head = 0; head < heads; ++head) {
        load_elements(args.query_dtype, record + head * latent * dtype_bytes(args.query_dtype),
                      values);
        std::ranges::copy(values, query.begin());
        for (const std::size_t j : attended) {
          accumulator.add_score(args.softmax_scale * dot(query, row(j)));
        }
        accumulator.finish(
            rank, [&](std::size_t i) { return row(attended[i]); }, state + head * rank,
            state + heads * rank + head);
      }
    }
  }
}

void run(const DenseAttendArgs& args) {
  const auto heads = static_cast<std::size_t>(args.heads);
  const auto nope = static_cast<std::size_t>(args.qk_nope_head_dim);
  const auto rope = static_cast<std::size_t>(args.qk_rope_head_dim);
  const auto width = static_cast<std::size_t>(args.v_head_dim);
  const StateShape shape{args.heads, args.v_head_dim};
  const auto tokens = static_cast<std::size_t>(args.tokens);
  const auto keys = static_cast<std::size_t>(args.keys);
  Accumulator accumulator;
  std::vector<std::vector<double>> key(keys);
  std::vector<std::vector<double>> value(keys);
  for (std::size_t head = 0; head < heads; ++head) {
    for (std::size_t j = 0; j < keys; ++j) {
      const float* kv = args.kv + (j * heads + head) * (nope + width);
      key[j] = widen(kv, nope);
      const std::vector<double> pe = widen(args.k_pe + j * rope, rope);
      key[j].insert(key[j].end(), pe.begin(), pe.end());
      value[j] = widen(kv + nope, width);
    }
    for (std::size_t token = 0; token < tokens; ++token) {
      const std::vector<double> query =
          widen(args.q + (token * heads + head) * (nope + rope), nope + rope);
      const auto visible = static_cast<std::size_t>(
          visible_rows(args.query_position + static_cast<std::int64_t>(token), args.key_position,
                       static_cast<std::int64_t>(keys)));
      for (std::size_t j = 0; j < visible; ++j) {
        accumulator.add_score(args.softmax_scale * dot(query, key[j]));
      }
      float* state = args.states + token * shape.record_floats();
      accumulator.finish(
          width, [&](std::size_t j) { return std::span<const double>(value[j]); },
          state + head * width, state + heads * width + head);
    }
  }
}

void run(const MergeArgs& args) {
  const std::size_t record = args.shape.record_floats();
  const auto heads = static_cast<std::size_t>(args.shape.heads);
  const auto width = static_cast<std::size_t>(args.shape.width);
  const auto merge_records = [&](float* dst, const float* left, const float* right) {
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t at = heads * width + head;
      // Other kernels use +inf or NaN for the empty set.
      const double lse_l = std::isfinite(left[at]) ? left[at] : kEmpty;
      const double lse_r = std::isfinite(right[at]) ? right[at] : kEmpty;
      const double max = std::max(lse_l, lse_r);
      float* o = dst + head * width;
      if (max == kEmpty) {
        std::fill_n(o, width, 0.0F);
        dst[at] = static_cast<float>(kEmpty);
        continue;
      }
      const double w_l = std::exp(lse_l - max);
      const double w_r = std::exp(lse_r - max);
      const float* o_l = left + head * width;
      const float* o_r = right + head * width;
      for (std::size_t c = 0; c < width; ++c) {
        // A side of weight 0 is skipped: 0 * NaN would poison the other.
        if (w_r == 0) {
          o[c] = o_l[c];
        } else if (w_l == 0) {
          o[c] = o_r[c];
        } else {
          o[c] = static_cast<float>((w_l * o_l[c] + w_r * o_r[c]) / (w_l + w_r));
        }
      }
      dst[at] = static_cast<float>(max + std::log(w_l + w_r));
    }
  };
  for (const MergeOp& op : args.ops) {
    for (std::int32_t token = 0; token < op.tokens; ++token) {
      float* dst = args.states + static_cast<std::size_t>(op.dst + token) * record;
      const float* left = args.states + static_cast<std::size_t>(op.left + token) * record;
      if (op.right == kNoState) {
        std::memmove(dst, left, args.shape.record_bytes());
      } else {
        merge_records(dst, left, args.states + static_cast<std::size_t>(op.right + token) * record);
      }
    }
  }
}

}  // namespace tributary::reference
