#include "tests/gpu/decode_grid.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <span>

#include "core/reference/reference_attend.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/float64_attend.h"
#include "tests/kernels/device_vectors.h"

namespace tributary::test {
namespace {

constexpr int kLeafTokens = 2048;
/// Enough that a sequence of 4096 takes an eighth of them, so that neighbours differ.
constexpr int kSharedPages = 512;
constexpr int kMostBatch = 128;
constexpr int kPages = kSharedPages + kMostBatch;  // the last ones are the sequences' last pages
constexpr std::size_t kPageElements = std::size_t{kPageTokens} * kGridLatent;
constexpr std::int32_t kGarbage = 0x7eadbeef;
const float kScale = 1 / std::sqrt(192.0F);
constexpr auto kTimeout = std::chrono::seconds(60);

/// Close to normal, and fast: the sum of four uniform numbers, of variance 1.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}
  float operator()() {
    const std::uint64_t bits = random_();
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xffffU);
    return (sum / 65536.0F - 2.0F) * std::sqrt(3.0F);
  }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
};

struct Batch {
  std::vector<GridSequence> sequences;
  std::vector<std::int32_t> table;
  std::vector<bf16> queries;
};

Batch make_batch(const GridCase& grid_case) {
  Batch batch;
  Generator generator(17);
  for (int s = 0; s < grid_case.batch; ++s) {
    const int rows = grid_case.variable ? 1 + (s * 997 + 31) % grid_case.length : grid_case.length;
    const bool empty = grid_case.empties && s % 3 == 1;
    const std::int64_t position = grid_case.causal ? rows - grid_case.tokens : rows;
    batch.sequences.push_back({.rows = rows,
                               .first_page = static_cast<std::int32_t>(batch.table.size()),
                               .query_position = empty ? -std::int64_t{kMaxStepTokens} : position});
    const int pages = (rows + kPageTokens - 1) / kPageTokens;
    for (int p = 0; p + 1 < pages; ++p) {
      batch.table.push_back(static_cast<std::int32_t>(generator.random()() % kSharedPages));
    }
    batch.table.push_back(kSharedPages + s);
    batch.table.push_back(kGarbage);
  }
  // The score of a query of deviation q and a row of deviation 1 deviates by scale q sqrt(576).
  const double deviation = grid_case.deviation / (kScale * std::sqrt(double{kGridLatent}));
  batch.queries.resize(static_cast<std::size_t>(grid_case.batch) *
                       static_cast<std::size_t>(grid_case.tokens) *
                       static_cast<std::size_t>(grid_case.heads) * kGridLatent);
  for (bf16& value : batch.queries) value = to_bf16(generator() * static_cast<float>(deviation));
  return batch;
}

/// One sequence of a batch, alone.
Batch sequence_alone(const Batch& batch, const GridCase& grid_case, int index) {
  const auto s = static_cast<std::size_t>(index);
  const std::size_t size = batch.queries.size() / static_cast<std::size_t>(grid_case.batch);
  const auto first = batch.queries.begin() + static_cast<std::ptrdiff_t>(s * size);
  return {.sequences = {batch.sequences[s]},
          .table = batch.table,
          .queries = {first, first + static_cast<std::ptrdiff_t>(size)}};
}

/// Tasks of all leaves, the merges of those of a sequence, and the number of state records. The
/// records of sequence s are the first of its leaf 0.
struct Work {
  std::vector<LeafTask> tasks;
  std::vector<std::vector<MergeOp>> levels;
  std::int64_t states = 0;
};

Work make_work(const Batch& batch, int tokens) {
  Work work;
  work.states = std::ssize(batch.sequences) * tokens;
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    const GridSequence& sequence = batch.sequences[s];
    const std::int64_t first = static_cast<std::int64_t>(s) * tokens;
    std::vector<std::int64_t> nodes;
    for (int begin = 0; begin < sequence.rows; begin += kLeafTokens) {
      const std::int64_t state = begin == 0 ? first : work.states;
      if (begin > 0) work.states += tokens;
      nodes.push_back(state);
      // A position before 0 means a token that sees nothing. It is moved up, because the interface
      // takes positions from 0 on.
      const std::int64_t shift = sequence.query_position < 0 ? kMaxStepTokens : 0;
      work.tasks.push_back({.tokens = tokens,
                            .rows = std::min(kLeafTokens, sequence.rows - begin),
                            .first_page = sequence.first_page + begin / kPageTokens,
                            .leaf_begin = begin + shift,
                            .query_position = sequence.query_position + shift,
                            .query = first,
                            .state = state});
    }
    for (std::size_t level = 0; nodes.size() > 1; ++level) {
      if (work.levels.size() <= level) work.levels.emplace_back();
      std::vector<std::int64_t> parents;
      for (std::size_t i = 0; i < nodes.size(); i += 2) {
        if (i + 1 < nodes.size()) {
          work.levels[level].push_back({nodes[i], nodes[i], nodes[i + 1], tokens});
        }
        parents.push_back(nodes[i]);
      }
      nodes = parents;
    }
  }
  return work;
}

}  // namespace

std::string GridCase::text() const {
  return fmt::format("batch {}, s_q {}, length {}, {} heads, {} lengths, {}{}, deviation {}", batch,
                     tokens, length, heads, variable ? "variable" : "fixed",
                     causal ? "causal" : "not causal", empties ? ", empty ones" : "", deviation);
}

DecodeGrid::DecodeGrid(Backend& backend) : backend_(backend) {
  std::vector<bf16> rows(kPages * kPageElements);
  Generator generator(5);
  for (bf16& value : rows) value = to_bf16(generator());
  rows_ = on_device(backend_, rows);
  cache_ = backend_.make_cache({.layers = 1,
                                .pages = kPages,
                                .kv_lora_rank = kGridRank,
                                .qk_rope_head_dim = kGridLatent - kGridRank,
                                .row_format = RowFormat::kBF16});
  std::vector<AppendTask> tasks;
  for (std::int32_t page = 0; page < kPages; ++page) {
    for (std::int32_t slot = 0; slot < kPageTokens; ++slot) {
      tasks.push_back({0, page, slot, std::int64_t{page} * kPageTokens + slot});
    }
  }
  const std::int32_t layer = 0;
  backend_.call(AppendArgs{.cache = cache_.get(),
                           .tasks = tasks,
                           .item_layer = std::span(&layer, 1),
                           .source = rows_->data(),
                           .source_stride_bytes = kGridLatent * sizeof(bf16)});
  backend_.synchronize(Deadline::after(kTimeout));
}

GridResult DecodeGrid::run(const GridCase& grid_case, int only) {
  Batch batch = make_batch(grid_case);
  if (only < 0) {
    // The last pages have NaN where there is no row. Only in the cache: the float64 reference reads
    // nothing but rows.
    const std::vector<bf16> nan(kPageElements, bf16{0x7fc0});
    for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
      const std::int32_t page = kSharedPages + static_cast<std::int32_t>(s);
      const int used = (batch.sequences[s].rows - 1) % kPageTokens + 1;
      std::vector<bf16> rows(kPageElements);
      backend_.download(std::as_writable_bytes(std::span(rows)),
                        rows_->data() + static_cast<std::size_t>(page) * kPageElements * 2);
      std::copy(nan.begin() + std::ptrdiff_t{used} * kGridLatent, nan.end(),
                rows.begin() + std::ptrdiff_t{used} * kGridLatent);
      backend_.store_rows(*cache_, 0, page, 0, std::as_bytes(std::span(rows)));
    }
  } else {
    batch = sequence_alone(batch, grid_case, only);
  }
  const Work work = make_work(batch, grid_case.tokens);
  const StateShape shape{grid_case.heads, kGridRank};
  const auto records = static_cast<std::size_t>(std::ssize(batch.sequences) * grid_case.tokens);
  const auto queries = on_device(backend_, batch.queries);
  const auto states =
      backend_.allocate(static_cast<std::size_t>(work.states) * shape.record_bytes());
  const std::int32_t layer = 0;
  backend_.call(
      AttendArgs{.cache = cache_.get(),
                 .tasks = work.tasks,
                 .block_table = batch.table,
                 .item_layer = std::span(&layer, 1),
                 .queries = queries->data(),
                 .query_stride_bytes = static_cast<std::size_t>(grid_case.heads) * kGridLatent * 2,
                 .query_dtype = DType::kBF16,
                 .heads = grid_case.heads,
                 .softmax_scale = kScale,
                 .states = states->as<float>()});
  for (const auto& ops : work.levels) {
    if (!ops.empty()) backend_.call(MergeArgs{ops, shape, states->as<float>()});
  }
  GridResult result;
  result.states.resize(records * shape.record_floats());
  backend_.download(std::as_writable_bytes(std::span(result.states)), states->data());
  if (only >= 0) return result;

  const auto table = on_device(backend_, batch.table);
  const auto sequences = on_device(backend_, batch.sequences);
  const auto exact = backend_.allocate(records * static_cast<std::size_t>(grid_case.heads) *
                                       kGridRecord * sizeof(double));
  EXPECT_TRUE(float64_attend({.rows = rows_->as<bf16>(),
                              .block_table = table->as<std::int32_t>(),
                              .sequences = sequences->as<GridSequence>(),
                              .count = static_cast<int>(batch.sequences.size()),
                              .tokens = grid_case.tokens,
                              .heads = grid_case.heads,
                              .queries = queries->as<bf16>(),
                              .softmax_scale = kScale,
                              .states = exact->as<double>()},
                             cuda_stream(backend_)));
  result.exact = fetch<double>(backend_, *exact);
  return result;
}

std::vector<double> DecodeGrid::on_host(const GridCase& grid_case, int sequence) {
  const Batch batch = make_batch(grid_case);
  const GridSequence& s = batch.sequences[static_cast<std::size_t>(sequence)];
  const auto record = static_cast<std::size_t>((sequence + 1) * grid_case.tokens - 1) *
                      static_cast<std::size_t>(grid_case.heads);
  std::vector<double> query;
  for (int c = 0; c < kGridLatent; ++c) {
    query.push_back(to_float(batch.queries[record * kGridLatent + static_cast<std::size_t>(c)]));
  }
  ReferenceAttention attention(1, kGridRank, kGridLatent - kGridRank, double{kScale}, query);
  std::vector<bf16> page(kPageElements);
  for (int begin = 0; begin < s.rows; begin += kPageTokens) {
    const auto number = static_cast<std::size_t>(
        batch.table[static_cast<std::size_t>(s.first_page + begin / kPageTokens)]);
    backend_.download(std::as_writable_bytes(std::span(page)),
                      rows_->data() + number * kPageElements * sizeof(bf16));
    std::vector<float> rows;
    for (int i = 0; i < std::min(kPageTokens, s.rows - begin) * kGridLatent; ++i) {
      rows.push_back(to_float(page[static_cast<std::size_t>(i)]));
    }
    attention.add(std::span<const float>(rows));
  }
  const ReferenceState state = attention.state();
  std::vector<double> result = state.o;
  result.push_back(state.lse[0]);
  return result;
}

// A weight of the product is rounded to bf16, by at most 2^-9 of it, so that a sum of weights p and
// values v is off by the sum of p v r with |r| <= 2^-9. By Hoeffding's inequality it is off by more
// than 8 x 2^-9 x sqrt(sum of p^2 v^2) once in 4e13 values; values have a deviation of 1 here.
constexpr double kOfWeightNorm = 8.0 / 512;
// Of an lse near 0: scores are fp32 sums of 576 products.
constexpr double kOfScores = 1e-5;

void expect_near(const GridCase& grid_case, const GridResult& result) {
  const auto heads = static_cast<std::size_t>(grid_case.heads);
  const std::size_t record = StateShape{grid_case.heads, kGridRank}.record_floats();
  const std::size_t tokens = result.states.size() / record;
  double dot = 0;
  double norm_got = 0;
  double norm_exact = 0;
  std::size_t wrong = 0;
  std::string first;
  const auto judge = [&](double got, double exact, double absolute, double relative,
                         std::size_t token, std::size_t head, std::size_t column) {
    const double error = std::abs(got - exact);
    const bool near =
        std::isfinite(exact)
            ? std::isfinite(got) && (error <= absolute || error < relative * std::abs(exact))
            : got == exact;
    if (near) return;
    if (wrong++ == 0) {
      first = fmt::format("token {}, head {}, column {}: {} instead of {}", token, head, column,
                          got, exact);
    }
  };
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      const double* exact = &result.exact[(t * heads + h) * kGridRecord];
      const float* got = &result.states[t * record + h * kGridRank];
      for (std::size_t c = 0; c < kGridRank; ++c) {
        judge(got[c], exact[c], kOfWeightNorm * exact[kGridRank + 1], 2.01 / 128, t, h, c);
        dot += got[c] * exact[c];
        norm_got += double{got[c]} * got[c];
        norm_exact += exact[c] * exact[c];
      }
      judge(result.states[t * record + heads * kGridRank + h], exact[kGridRank], kOfScores,
            8.01 / 65536, t, h, kGridRank);
    }
  }
  EXPECT_EQ(wrong, 0U) << grid_case.text() << ": " << first;
  if (norm_exact > 0) {
    EXPECT_LT(1 - dot / std::sqrt(norm_got * norm_exact), 5e-6) << grid_case.text();
  }
}

}  // namespace tributary::test
