#include "deploy/python/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary::python {
namespace {

/// The size of a leaf in a pool, unless the caller sets it.
constexpr std::int64_t kLeafTokens = 2048;
constexpr std::int64_t kLeafPages = kLeafTokens / kPageTokens;
/// The size of partial states at a time: work for every thread of a large machine, little beside a
/// cache.
constexpr std::size_t kScratchBytes = std::size_t{64} << 20;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Records for the states of a token over `leaves` leaves: the result, and those it is merged from
/// unless it is the only one.
std::int64_t records_of(std::int64_t leaves) {
  return leaves <= 1 ? 1 : leaves + 1;
}

std::int64_t leaves_of(const PagedBatch& batch, std::int64_t sequence) {
  return ceil_div(std::int64_t{batch.lengths[sequence]}, kLeafTokens);
}

void check_rows_of(const PagedBatch& batch) {
  if ((batch.sequences - 1) * batch.table_stride + batch.columns > INT32_MAX) {
    fail(ErrorCode::kInvalidArgument, "block_table: {} rows {} entries apart, must be {} in all",
         batch.sequences, batch.table_stride, INT32_MAX);
  }
  const std::int64_t most = batch.columns * kPageTokens;
  for (std::int64_t b = 0; b < batch.sequences; ++b) {
    const std::int32_t length = batch.lengths[b];
    if (length < 0 || length > most) {
      fail(ErrorCode::kInvalidArgument,
           "cache_seqlens[{}] is {}, must be 0 to {} (the {} blocks of 64 of block_table)", b,
           length, most, batch.columns);
    }
    for (std::int64_t i = 0; i < ceil_div(length, kPageTokens); ++i) {
      const std::int32_t page = batch.block_table[b * batch.table_stride + i];
      if (page < 0 || page >= batch.pages) {
        fail(ErrorCode::kInvalidArgument, "block_table[{}, {}] is {}, must be 0 to {}", b, i, page,
             batch.pages - 1);
      }
    }
  }
}

void check_slots(const SelectedBatch& batch, const SelectedSlots& slots) {
  if (slots.slots() > INT32_MAX - kPageTokens) {
    fail(ErrorCode::kInvalidArgument, "{}: {} slots, must be {} at most", slots.name, slots.slots(),
         INT32_MAX - kPageTokens);
  }
  for (std::int64_t token = 0; token < std::int64_t{batch.sequences} * batch.tokens; ++token) {
    const std::int64_t b = token / batch.tokens;
    const std::int64_t counted =
        slots.lengths == nullptr ? slots.most : std::int64_t{slots.lengths[b]};
    for (std::int64_t i = 0; i < std::min(slots.most, counted); ++i) {
      const std::int32_t slot = slots.lists[token * slots.most + i];
      if (slot < -1 || slot >= slots.slots()) {
        fail(ErrorCode::kInvalidArgument, "{}[{}, {}, {}] is {}, must be -1 to {}", slots.name, b,
             token % batch.tokens, i, slot, slots.slots() - 1);
      }
    }
  }
}

}  // namespace

/// Consecutive tokens of some items whose states are in scratch memory together. The results are in
/// its first records, in order, the states that they are merged from in the last ones.
struct PagedAttention::Chunk {
  int kv_head = 0;
  float* states = nullptr;
  StateShape shape;
  std::int64_t first_token = 0;  // of [B * S]
  std::int64_t tokens = 0;       // results
  std::int64_t rest = 0;         // first record of the others

  [[nodiscard]] std::int64_t room() const noexcept { return rest - tokens; }
};

PagedAttention::PagedAttention(int threads)
    : backend_(make_cpu_backend({.threads = threads, .instruction_set = ""})) {}

float* PagedAttention::records(std::size_t count, const StateShape& shape) {
  const std::size_t bytes = count * shape.record_bytes();
  if (scratch_ == nullptr || scratch_->bytes() < bytes) {
    scratch_.reset();  // first, so that there are never two
    scratch_ = backend_->allocate(bytes);
  }
  return scratch_->as<float>();
}

void PagedAttention::attend(const PagedBatch& batch) {
  check_rows_of(batch);
  tasks_.clear();  // of a call that failed
  merges_.clear();
  const std::size_t row = batch.row().bytes();
  const auto cache =
      borrow_cpu_cache(*backend_,
                       {.layers = batch.kv_heads,  // of every row
                        .pages = batch.pages,
                        .kv_lora_rank = batch.head_dim_v,
                        .qk_rope_head_dim = batch.head_dim - batch.head_dim_v,
                        .row_format = batch.format},
                       {.data = batch.rows,
                        .layer_bytes = row,
                        .page_bytes = batch.page_bytes,
                        .row_bytes = static_cast<std::size_t>(batch.kv_heads) * row});
  for (int head = 0; head < batch.kv_heads; ++head) attend_heads(batch, *cache, head);
}

void PagedAttention::attend_heads(const PagedBatch& batch, const Cache& cache, int kv_head) {
  const StateShape shape{batch.heads / batch.kv_heads, batch.head_dim_v};
  std::int64_t all = 0;
  std::int64_t most = 1;  // of one token
  for (std::int64_t b = 0; b < batch.sequences; ++b) {
    const std::int64_t each = records_of(leaves_of(batch, b));
    all += each * batch.tokens;
    most = std::max(most, each);
  }
  const auto bound = static_cast<std::int64_t>(kScratchBytes / shape.record_bytes());
  const std::int64_t room = std::max(most, std::min(all, bound));
  const Chunk empty{.kv_head = kv_head,
                    .states = records(static_cast<std::size_t>(room), shape),
                    .shape = shape,
                    .rest = room};
  Chunk chunk = empty;
  for (std::int64_t b = 0; b < batch.sequences; ++b) {
    const std::int64_t each = records_of(leaves_of(batch, b));
    const std::int64_t piece = std::min<std::int64_t>(kMaxStepTokens, room / each);
    for (std::int64_t token = 0; token < batch.tokens; token += piece) {
      const std::int64_t tokens = std::min(piece, batch.tokens - token);
      if (chunk.room() < tokens * each) {
        run(batch, cache, chunk);
        const std::int64_t next = chunk.first_token + chunk.tokens;
        chunk = empty;
        chunk.first_token = next;
      }
      add(batch, chunk, b * batch.tokens + token, static_cast<std::int32_t>(tokens));
    }
  }
  run(batch, cache, chunk);
}

void PagedAttention::add(const PagedBatch& batch, Chunk& chunk, std::int64_t token,
                         std::int32_t tokens) {
  const std::int64_t b = token / batch.tokens;
  const std::int64_t length = batch.lengths[b];
  const std::int64_t leaves = leaves_of(batch, b);
  // In a mask with more new tokens than rows, the first tokens see none.
  const std::int64_t position =
      batch.causal ? length - batch.tokens + token % batch.tokens : length;
  const auto lonely = static_cast<std::int32_t>(
      length == 0 ? tokens : std::clamp<std::int64_t>(-position, 0, tokens));
  const std::size_t record = chunk.shape.record_floats();
  const auto lse = static_cast<std::size_t>(chunk.shape.heads * chunk.shape.width);
  for (std::int32_t i = 0; i < lonely; ++i) {
    float* state = chunk.states + static_cast<std::size_t>(chunk.tokens + i) * record;
    std::fill_n(state, lse, 0.0F);
    std::fill(state + lse, state + record, -kInfinity);
  }
  const std::int32_t seeing = tokens - lonely;
  const std::int64_t result = chunk.tokens + lonely;
  chunk.tokens += tokens;
  if (seeing == 0) return;
  if (leaves > 1) chunk.rest -= leaves * seeing;
  nodes_.clear();
  for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
    const std::int64_t begin = leaf * kLeafTokens;
    const std::int64_t state = leaves == 1 ? result : chunk.rest + leaf * seeing;
    tasks_.push_back(
        {.tokens = seeing,
         .rows = static_cast<std::int32_t>(std::min(kLeafTokens, length - begin)),
         .first_page = static_cast<std::int32_t>(b * batch.table_stride + leaf * kLeafPages),
         .leaf_begin = begin,
         .query_position = position + lonely,
         .query = token + lonely,
         .state = state});
    nodes_.push_back(
        {.node = {.level = 0, .index = static_cast<std::int32_t>(leaf)}, .state = state});
  }
  merges_.add(nodes_, tree_height(leaves), result, seeing);
}

void PagedAttention::run(const PagedBatch& batch, const Cache& cache, const Chunk& chunk) {
  const auto first_head =
      static_cast<std::size_t>(chunk.kv_head) * static_cast<std::size_t>(chunk.shape.heads);
  const std::size_t element = dtype_bytes(batch.dtype);
  backend_->call(AttendArgs{
      .cache = &cache,
      .tasks = tasks_,
      .block_table = std::span(
          batch.block_table,
          static_cast<std::size_t>((batch.sequences - 1) * batch.table_stride + batch.columns)),
      .item_layer = std::span(&chunk.kv_head, 1),
      .queries = batch.queries + first_head * static_cast<std::size_t>(batch.head_dim) * element,
      .query_stride_bytes = batch.query_stride_bytes,
      .query_dtype = batch.dtype,
      .heads = chunk.shape.heads,
      .softmax_scale = batch.softmax_scale,
      .states = chunk.states});
  ops_.clear();
  for (const std::vector<MergeOp>& level : merges_.levels()) {
    ops_.insert(ops_.end(), level.begin(), level.end());
  }
  backend_->call(MergeArgs{.ops = ops_,
                           .shape = chunk.shape,
                           .states = chunk.states,
                           .levels = std::max(1, static_cast<int>(merges_.levels().size()))});
  const auto width = static_cast<std::size_t>(batch.head_dim_v);
  const std::int64_t values = std::int64_t{chunk.shape.heads} * chunk.shape.width;
  const std::size_t out_stride = static_cast<std::size_t>(batch.heads) * width * element;
  backend_->call(ConvertArgs{.rows = chunk.tokens,
                             .src = chunk.states,
                             .src_row = plain_row(values),
                             .src_stride_bytes = chunk.shape.record_bytes(),
                             .dst = batch.out +
                                    static_cast<std::size_t>(chunk.first_token) * out_stride +
                                    first_head * width * element,
                             .dst_row = plain_row(values, batch.dtype),
                             .dst_stride_bytes = out_stride});
  for (std::int64_t i = 0; i < chunk.tokens; ++i) {
    const std::int64_t b = (chunk.first_token + i) / batch.tokens;
    const std::int64_t s = (chunk.first_token + i) % batch.tokens;
    const float* from =
        chunk.states + static_cast<std::size_t>(i) * chunk.shape.record_floats() + values;
    for (std::int64_t h = 0; h < chunk.shape.heads; ++h) {
      const std::int64_t head = static_cast<std::int64_t>(first_head) + h;
      batch.lse[(b * batch.heads + head) * batch.tokens + s] =
          from[h] == -kInfinity ? kInfinity : from[h];
    }
  }
  tasks_.clear();
  merges_.clear();
}

void PagedAttention::attend_slots(const SelectedBatch& batch, const SelectedSlots& slots,
                                  std::int64_t first, std::int64_t count, float* states) {
  const std::int64_t pages = ceil_div(slots.slots(), std::int64_t{kPageTokens});
  const std::size_t row = batch.row().bytes();
  const bool in_pages = slots.block_rows == kPageTokens;
  const auto cache =
      borrow_cpu_cache(*backend_,
                       {.layers = 1,
                        .pages = static_cast<int>(pages),
                        .kv_lora_rank = batch.head_dim_v,
                        .qk_rope_head_dim = batch.head_dim - batch.head_dim_v,
                        .row_format = batch.format},
                       {.data = slots.rows,
                        .layer_bytes = row,
                        .page_bytes = in_pages ? slots.block_bytes : kPageTokens * row,
                        .row_bytes = row});
  pages_.resize(static_cast<std::size_t>(pages));
  std::iota(pages_.begin(), pages_.end(), 0);
  // Each list in order, -1 behind its last.
  const auto most = static_cast<std::size_t>(slots.most);
  lists_.assign(static_cast<std::size_t>(count) * most, -1);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = first + i;
    std::int64_t counted = slots.most;
    if (slots.lengths != nullptr) {
      counted = std::clamp<std::int64_t>(slots.lengths[token / batch.tokens], 0, counted);
    }
    const std::span list(slots.lists + token * slots.most, static_cast<std::size_t>(counted));
    const auto begin = lists_.begin() + i * slots.most;
    const auto end =
        std::ranges::copy_if(list, begin, [](std::int32_t slot) { return slot >= 0; }).out;
    std::sort(begin, end);
  }
  tasks_.clear();
  for (std::int64_t i = 0; i < count; i += kMaxStepTokens) {
    tasks_.push_back(
        {.tokens = static_cast<std::int32_t>(std::min<std::int64_t>(kMaxStepTokens, count - i)),
         .rows = static_cast<std::int32_t>(slots.slots()),
         .query_position = slots.slots(),
         .query = i,
         .state = i});
  }
  const std::int32_t layer = 0;
  backend_->call(AttendArgs{
      .cache = cache.get(),
      .tasks = tasks_,
      .block_table = pages_,
      .item_layer = std::span(&layer, 1),
      .queries = batch.queries + static_cast<std::size_t>(first) * batch.query_stride_bytes,
      .query_stride_bytes = batch.query_stride_bytes,
      .query_dtype = batch.dtype,
      .heads = batch.heads,
      .softmax_scale = batch.softmax_scale,
      .states = states,
      .selected = {.data = lists_.data(),
                   .stride_bytes = most * sizeof(std::int32_t),
                   .most = static_cast<std::int32_t>(most)}});
  tasks_.clear();
}

void PagedAttention::attend(const SelectedBatch& batch) {
  const std::int64_t all = std::int64_t{batch.sequences} * batch.tokens;
  for (const SelectedSlots& slots : batch.caches) check_slots(batch, slots);
  const StateShape shape{batch.heads, batch.head_dim_v};
  const std::size_t record = shape.record_floats();
  const std::size_t caches = batch.caches.size();
  const auto bound = static_cast<std::int64_t>(kScratchBytes / shape.record_bytes() / caches);
  const std::int64_t most = std::max<std::int64_t>(1, std::min(all, bound));
  float* states = records(static_cast<std::size_t>(most) * caches, shape);
  const auto heads = static_cast<std::size_t>(batch.heads);
  const auto width = static_cast<std::size_t>(batch.head_dim_v);
  const auto values = static_cast<std::int64_t>(heads * width);
  const RowLayout row = plain_row(values, batch.dtype);
  for (std::int64_t first = 0; first < all; first += most) {
    const std::int64_t count = std::min(most, all - first);
    float* next = states;
    for (const SelectedSlots& slots : batch.caches) {
      attend_slots(batch, slots, first, count, next);
      next += static_cast<std::size_t>(most) * record;
    }
    if (caches > 1) {
      const MergeOp op{.right = most, .tokens = static_cast<std::int32_t>(count)};
      backend_->call(MergeArgs{.ops = std::span(&op, 1), .shape = shape, .states = states});
    }
    for (std::int64_t i = 0; i < count; ++i) {
      float* state = states + static_cast<std::size_t>(i) * record;
      const std::int64_t b = (first + i) / batch.tokens;
      const std::int64_t s = (first + i) % batch.tokens;
      for (std::size_t h = 0; h < heads; ++h) {
        const float lse = state[static_cast<std::size_t>(values) + h];
        const bool empty = lse == -kInfinity;
        if (batch.sink != nullptr && !empty) {
          const float factor = 1 / (1 + std::exp(batch.sink[h] - lse));
          for (std::size_t c = 0; c < width; ++c) state[h * width + c] *= factor;
        }
        batch.lse[(b * batch.heads + static_cast<std::int64_t>(h)) * batch.tokens + s] =
            empty ? kInfinity : lse;
      }
    }
    backend_->call(ConvertArgs{.rows = count,
                               .src = states,
                               .src_row = plain_row(values),
                               .src_stride_bytes = shape.record_bytes(),
                               .dst = batch.out + static_cast<std::size_t>(first) * row.bytes(),
                               .dst_row = row,
                               .dst_stride_bytes = row.bytes()});
  }
}

void PagedAttention::merge(const StatePairs& pairs) {
  const StateShape shape{pairs.heads, pairs.width};
  const auto record = static_cast<std::int64_t>(shape.record_floats());
  const std::int64_t heads = pairs.heads;
  const std::int64_t values = heads * pairs.width;
  const RowLayout wide = plain_row(values);
  const RowLayout row = plain_row(values, pairs.dtype);
  const auto bound = static_cast<std::int64_t>(kScratchBytes / shape.record_bytes() / 2);
  const std::int64_t most =
      std::min({std::max<std::int64_t>(1, bound), pairs.tokens, std::int64_t{1} << 30});
  if (most == 0) return;
  float* left = records(static_cast<std::size_t>(2 * most), shape);
  float* right = left + most * record;
  for (std::int64_t token = 0; token < pairs.tokens; token += most) {
    const std::int64_t tokens = std::min(most, pairs.tokens - token);
    const auto load = [&](const std::byte* v, std::size_t stride, const float* lse, float* states) {
      backend_->call(ConvertArgs{.rows = tokens,
                                 .src = v + static_cast<std::size_t>(token) * stride,
                                 .src_row = row,
                                 .src_stride_bytes = stride,
                                 .dst = states,
                                 .dst_row = wide,
                                 .dst_stride_bytes = shape.record_bytes()});
      for (std::int64_t i = 0; i < tokens * heads; ++i) {
        states[i / heads * record + values + i % heads] = lse[token * heads + i] * pairs.log_unit;
      }
    };
    load(pairs.v_left, pairs.left_stride_bytes, pairs.lse_left, left);
    load(pairs.v_right, pairs.right_stride_bytes, pairs.lse_right, right);
    const MergeOp op{.right = most, .tokens = static_cast<std::int32_t>(tokens)};
    backend_->call(MergeArgs{.ops = std::span(&op, 1), .shape = shape, .states = left});
    backend_->call(ConvertArgs{.rows = tokens,
                               .src = left,
                               .src_row = wide,
                               .src_stride_bytes = shape.record_bytes(),
                               .dst = pairs.v + static_cast<std::size_t>(token) * row.bytes(),
                               .dst_row = row,
                               .dst_stride_bytes = row.bytes()});
    for (std::int64_t i = 0; i < tokens * heads; ++i) {
      pairs.lse[token * heads + i] = left[i / heads * record + values + i % heads] / pairs.log_unit;
    }
  }
}

}  // namespace tributary::python
