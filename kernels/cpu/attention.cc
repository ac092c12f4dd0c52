// A unit of attention is (task, block of heads), so that even a single short sequence uses every
// thread, and as many query rows as possible share the unpacking of a page. How work is split never
// changes bits (kernel_table.h).
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"
#include "core/interface/selected_rows.h"

namespace tributary::cpu {
namespace {

// With fewer units per thread tasks are split further, so that threads finish at about the same
// time.
constexpr std::size_t kUnitsPerThread = 4;
// With fewer query rows, unpacking a page costs about as much as the arithmetic on it.
constexpr std::size_t kMinQueryRows = 8;
// Heads per unit of a merge when there are few records.
constexpr std::size_t kMergeHeads = 16;

}  // namespace

Attention::Attention(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels),
      pool_(pool),
      scratch_(static_cast<std::size_t>(pool.threads())),
      workspaces_(static_cast<std::size_t>(pool.threads())) {}

void Attention::reserve_scratch(std::size_t bytes) {
  if (bytes <= scratch_bytes_) return;
  // Memory for all threads or for none.
  std::vector<AlignedBytes> memory(scratch_.size());
  for (AlignedBytes& part : memory) {
    part = allocate_aligned(round_up(bytes, kHugePage) + kHugePage, "attention scratch");
  }
  scratch_ = std::move(memory);
  scratch_bytes_ = bytes;
}

// On a huge page: scratch and two blocks of rows nearly fill the second-level cache, and small
// pages that map to the same sets would evict each other.
std::byte* Attention::scratch_of(std::size_t thread) const noexcept {
  std::byte* memory = scratch_[thread].get();
  const auto past = reinterpret_cast<std::uintptr_t>(memory) % kHugePage;
  return memory + (past == 0 ? 0 : kHugePage - past);
}

void Attention::reserve_workspaces(std::size_t depth, std::size_t width, std::size_t more) {
  reserve_scratch(AttendWorkspace::floats(depth, width) * sizeof(float) + more);
  for (std::size_t i = 0; i < workspaces_.size(); ++i) {
    workspaces_[i] = AttendWorkspace::carve(reinterpret_cast<float*>(scratch_of(i)), depth, width);
  }
}

void Attention::select_rows(const AttendArgs& args) {
  token_tasks_.clear();
  token_rows_.clear();
  for (const LeafTask& task : args.tasks) {
    for (std::int32_t token = 0; token < task.tokens; ++token) {
      const auto positions = selected_rows(args, task, token);
      const auto rows = static_cast<std::int32_t>(positions.size());
      token_tasks_.push_back({.item = task.item,
                              .tokens = 1,
                              .rows = rows,
                              .query_position = rows - 1,
                              .query = task.query + token,
                              .state = task.state + token});
      token_rows_.push_back({&task, positions});
    }
  }
}

GatheredRows Attention::rows_of(const HostCache& cache, const AttendArgs& args,
                                const LeafUnit& unit) const {
  const LeafTask* leaf = unit.task;
  const std::int32_t* positions = nullptr;
  if (args.selected.most != 0) {
    const TokenRows& rows = token_rows_[static_cast<std::size_t>(unit.task - token_tasks_.data())];
    leaf = rows.leaf;
    positions = rows.positions.data();
  }
  return {.count = static_cast<std::size_t>(unit.task->rows),
          .positions = positions,
          .leaf_begin = leaf->leaf_begin,
          .layer = cache.layer_data(args.item_layer[static_cast<std::size_t>(unit.task->item)]),
          .page_bytes = cache.page_bytes(),
          .row_stride = cache.row_bytes(),
          .pages = args.block_table.data() + leaf->first_page};
}

void Attention::cut_tasks(std::span<const LeafTask> tasks, std::size_t heads,
                          const PairKernel* pairs, bool copies) {
  const auto threads = static_cast<std::size_t>(pool_.threads());
  const bool enough = threads == 1 || tasks.size() >= threads * kUnitsPerThread;
  const std::size_t pieces_wanted =
      enough ? 1 : ceil_div(threads * (copies ? 1 : kUnitsPerThread), tasks.size());
  leaf_units_.clear();
  for (const LeafTask& task : tasks) {
    const auto tokens = static_cast<std::size_t>(task.tokens);
    const UnitCut cut =
        pairs != nullptr
            ? pairs->unit_cut(heads, tokens, copies && enough)
            : UnitCut{.least_rows = kMinQueryRows, .most_rows = kMaxQueryRows, .quantum = 1};
    const std::size_t most = cut.most_rows / tokens;
    const std::size_t least = std::min(most, ceil_div(cut.least_rows, tokens));
    const std::size_t wanted = std::clamp(ceil_div(heads, pieces_wanted), least, most);
    const std::size_t even = ceil_div(heads, ceil_div(heads, wanted));
    // Whole vectors of query rows if the kernel's lanes are query rows.
    const std::size_t block =
        std::min(most, ceil_div(round_up(even * tokens, cut.quantum), tokens));
    for (std::size_t head = 0; head < heads; head += block) {
      leaf_units_.push_back({&task, head, std::min(heads, head + block)});
    }
  }
  if (threads == 1) return;
  // Long units first, so that threads finish together; the units of a leaf stay adjacent.
  std::ranges::sort(leaf_units_, [](const LeafUnit& a, const LeafUnit& b) {
    return std::tuple(-a.task->rows, a.task, a.head_begin) <
           std::tuple(-b.task->rows, b.task, b.head_begin);
  });
}

void Attention::attend(const HostCache& cache, const AttendArgs& args) {
  if (args.tasks.empty()) return;
  const CacheLayout& layout = cache.layout();
  const auto latent = static_cast<std::size_t>(layout.latent_dim());
  const auto rank = static_cast<std::size_t>(layout.kv_lora_rank);
  // Kernels read bf16 and fp32: rows of codes are copied as bf16.
  const bool plain = plain_elements(layout.row_format).has_value();
  const RowFormat read_format = plain ? layout.row_format : RowFormat::kBF16;
  const PairKernel* pairs = kernels_.pairs;
  if (pairs != nullptr && (read_format != RowFormat::kBF16 || args.query_dtype != DType::kBF16 ||
                           static_cast<std::size_t>(args.heads) > kernels_.pairs_most_heads ||
                           !pairs->supports(latent, rank))) {
    pairs = nullptr;
  }
  const bool sparse = args.selected.most != 0;
  const bool copies = sparse || !plain;
  const RowCopy copy(layout.row(), kernels_.widen_codes);
  const std::size_t block_rows = pairs == nullptr ? kBlockRows : pairs->block_rows;
  const std::size_t copied_bytes = copies ? RowGather::bytes(block_rows, copy) + kHostAlignment : 0;
  const std::size_t kernel_bytes = pairs != nullptr
                                       ? pairs->scratch_bytes(latent, rank)
                                       : AttendWorkspace::floats(latent, rank) * sizeof(float);
  if (pairs != nullptr) {
    reserve_scratch(kernel_bytes + copied_bytes);
  } else {
    reserve_workspaces(latent, rank, copied_bytes);
  }
  if (sparse) select_rows(args);
  const std::span<const LeafTask> tasks = sparse ? std::span(token_tasks_) : args.tasks;
  if (copies) {
    const auto most = static_cast<std::size_t>(std::ranges::max(tasks, {}, &LeafTask::rows).rows);
    copied_pages_.resize(std::max(copied_pages_.size(), ceil_div(most, kBlockRows)));
    const std::size_t ring = 2 * block_rows / kBlockRows;
    for (std::size_t i = 0; i < copied_pages_.size(); ++i) {
      copied_pages_[i] = static_cast<std::int32_t>(i % ring);
    }
  }
  const auto heads = static_cast<std::size_t>(args.heads);
  cut_tasks(tasks, heads, pairs, copies);
  const StateShape shape{args.heads, layout.kv_lora_rank};
  const auto layer_of = [&](const LeafUnit& unit) {
    return cache.layer_data(args.item_layer[static_cast<std::size_t>(unit.task->item)]);
  };
  const auto ahead = static_cast<std::size_t>(pool_.threads());
  pool_.for_each(leaf_units_.size(), [&](std::size_t index, int thread) {
    const LeafUnit& unit = leaf_units_[index];
    const LeafTask& task = *unit.task;
    LeafKernelArgs kernel{
        .task = &task,
        .layer = layer_of(unit),
        .page_bytes = cache.page_bytes(),
        .row_bytes = cache.row_bytes(),
        .row_format = read_format,
        .pages = args.block_table.data() + task.first_page,
        .kv_lora_rank = rank,
        .latent_dim = latent,
        .queries = args.queries + static_cast<std::size_t>(task.query) * args.query_stride_bytes,
        .query_stride_bytes = args.query_stride_bytes,
        .query_dtype = args.query_dtype,
        .heads = heads,
        .head_begin = unit.head_begin,
        .head_end = unit.head_end,
        .softmax_scale = args.softmax_scale,
        .states = args.states + static_cast<std::size_t>(task.state) * shape.record_floats(),
        .next_pages = {},
        .prefetch = prefetch_,
    };
    std::optional<RowGather> gather;
    if (copies) {
      std::byte* to =
          scratch_of(static_cast<std::size_t>(thread)) + round_up(kernel_bytes, kHostAlignment);
      const bool last = index + ahead >= leaf_units_.size();
      kernel.layer = to;
      kernel.row_bytes = copy.copied_bytes();
      kernel.page_bytes = kPageTokens * copy.copied_bytes();
      kernel.pages = copied_pages_.data();
      kernel.gather =
          &gather.emplace(rows_of(cache, args, unit),
                          last ? GatheredRows{} : rows_of(cache, args, leaf_units_[index + ahead]),
                          block_rows, copy, to, prefetch_);
    }
    // Threads claim units roughly in turn.
    if (!copies && index + ahead < leaf_units_.size()) {
      const LeafUnit& next = leaf_units_[index + ahead];
      const std::int32_t* pages = args.block_table.data() + next.task->first_page;
      for (std::size_t i = 0; i < kernel.next_pages.size(); ++i) {
        if (static_cast<std::size_t>(next.task->rows) <= i * kPageTokens) break;
        kernel.next_pages[i] =
            layer_of(next) + static_cast<std::size_t>(pages[i]) * cache.page_bytes();
      }
    }
    if (pairs == nullptr) {
      kernels_.attend_leaf(kernel, workspaces_[static_cast<std::size_t>(thread)]);
    } else {
      pairs->attend_leaf(kernel, scratch_of(static_cast<std::size_t>(thread)));
    }
  });
}

void Attention::run(const DenseAttendArgs& args) {
  if (args.tokens == 0) return;
  const auto heads = static_cast<std::size_t>(args.heads);
  const auto tokens = static_cast<std::size_t>(args.tokens);
  reserve_workspaces(static_cast<std::size_t>(args.qk_nope_head_dim) +
                         static_cast<std::size_t>(args.qk_rope_head_dim),
                     static_cast<std::size_t>(args.v_head_dim));
  const std::size_t blocks = ceil_div(tokens, kMaxQueryRows);
  pool_.for_each(heads * blocks, [&](std::size_t index, int thread) {
    const std::size_t token = (index / heads) * kMaxQueryRows;
    const DenseKernelArgs kernel{.call = &args,
                                 .head = index % heads,
                                 .token_begin = token,
                                 .token_end = std::min(tokens, token + kMaxQueryRows)};
    kernels_.attend_dense(kernel, workspaces_[static_cast<std::size_t>(thread)]);
  });
}

void Attention::run(const MergeArgs& args) {
  // Level by level: an op may take the result of the level before.
  for (auto begin = args.ops.begin(); begin != args.ops.end();) {
    const auto end = std::find_if(begin, args.ops.end(),
                                  [&](const MergeOp& op) { return op.level != begin->level; });
    run_level(args, {begin, end});
    begin = end;
  }
}

void Attention::run_level(const MergeArgs& args, std::span<const MergeOp> ops) {
  merge_units_.clear();
  for (const MergeOp& op : ops) {
    for (std::int32_t token = 0; token < op.tokens; ++token) {
      merge_units_.push_back({.dst = op.dst + token,
                              .left = op.left + token,
                              .right = op.right == kNoState ? kNoState : op.right + token});
    }
  }
  const auto heads = static_cast<std::size_t>(args.shape.heads);
  const auto width = static_cast<std::size_t>(args.shape.width);
  const std::size_t record = args.shape.record_floats();
  const auto at = [&](std::int64_t index) {
    return args.states + static_cast<std::size_t>(index) * record;
  };
  const bool few =
      merge_units_.size() < static_cast<std::size_t>(pool_.threads()) * kUnitsPerThread;
  const std::size_t block = pool_.threads() > 1 && few ? kMergeHeads : heads;
  const std::size_t blocks = ceil_div(heads, block);
  pool_.for_each(merge_units_.size() * blocks, [&](std::size_t index, int /*thread*/) {
    const MergeUnit& unit = merge_units_[index / blocks];
    const std::size_t head_begin = index % blocks * block;
    const std::size_t head_end = std::min(heads, head_begin + block);
    if (unit.right == kNoState) {
      if (unit.dst == unit.left) return;
      const float* left = at(unit.left);
      float* dst = at(unit.dst);
      const std::size_t lse = heads * width;
      std::copy(left + head_begin * width, left + head_end * width, dst + head_begin * width);
      std::copy(left + lse + head_begin, left + lse + head_end, dst + lse + head_begin);
      return;
    }
    kernels_.merge({.heads = heads,
                    .width = width,
                    .head_begin = head_begin,
                    .head_end = head_end,
                    .left = at(unit.left),
                    .right = at(unit.right),
                    .dst = at(unit.dst)});
  });
}

}  // namespace tributary::cpu
