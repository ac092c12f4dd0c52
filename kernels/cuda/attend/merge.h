// The merge of partial states: the CUDA backend's only copy. One warp computes one head of one
// token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/interface/backend.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/attend/unit.h"

namespace tributary::cuda {

inline constexpr int kMergeWarps = 4;  // heads of a block; the grid's x is a tree

// Other kernels use +inf or NaN for the empty set.
TRIBUTARY_DEVICE float known_lse(float lse) {
  return lse > kNothing && lse < -kNothing ? lse : kNothing;
}

/// The way in which two states become one, the same for all columns of a head.
struct Blend {
  enum Of : int { kLeft, kRight, kBoth, kNeither };
  Of of = kLeft;
  float left = 0, right = 0;  // shares, of both
  float lse = 0;              // of the result
};

/// The weights for merging two states with these lse.
TRIBUTARY_DEVICE Blend blend_of(float lse_left, float lse_right) {
  lse_left = known_lse(lse_left);
  lse_right = known_lse(lse_right);
  const float maximum = ptx::larger(lse_left, lse_right);
  if (maximum == kNothing) return {Blend::kNeither, 0, 0, kNothing};
  const float w_left = ptx::exp(ptx::subtract(lse_left, maximum));
  const float w_right = ptx::exp(ptx::subtract(lse_right, maximum));
  // A side of weight 0 is skipped: 0 * NaN would poison the other, whose bits stay.
  if (w_right == 0) return {Blend::kLeft, 0, 0, maximum};
  if (w_left == 0) return {Blend::kRight, 0, 0, maximum};
  const float total = ptx::add(w_left, w_right);
  return {Blend::kBoth, ptx::divide(w_left, total), ptx::divide(w_right, total),
          ptx::add(maximum, ptx::log(total))};
}

/// A column of the result.
TRIBUTARY_DEVICE float blended(const Blend& blend, float left, float right) {
  const float both = ptx::multiply_add(blend.left, left, ptx::multiply(blend.right, right));
  const float one = blend.of == Blend::kRight ? right : left;
  return blend.of == Blend::kBoth ? both : blend.of == Blend::kNeither ? 0.0F : one;
}

/// The type that a lane moves at once.
template <int kFloats>
struct alignas(kFloats * sizeof(float)) MergeChunk {
  float at[kFloats];
};

/// Reads all memory of a batch before it writes anything, so that it waits for the latency once and
/// dst may be one of the inputs. A batch is eight chunks per lane, in 32 registers. With 16 bytes
/// each and 16 warps that is 64 KB in flight per multiprocessor, of which an H200 needs some 30.
inline constexpr int kMergeBatch = 8;

/// Merges one head of one token by a warp: neighbours of kSlots inputs, then their results, ...
/// Offsets count floats.
template <int kFloats, int kSlots>
class MergeHead {
 public:
  TRIBUTARY_DEVICE MergeHead(const MergeLaunch& launch, const MergeTree& tree, int token,
                             std::size_t column, std::size_t lse, std::size_t record)
      : column_(column), lse_(lse) {
    TRIBUTARY_UNROLL
    for (int i = 0; i < kSlots; ++i) {
      const std::int64_t input = tree.inputs[static_cast<std::size_t>(i)];
      const bool exists = input != kNoState;
      inputs_[i] =
          exists ? record_of(launch.states, launch.scratch, input + token, record) : nullptr;
    }
  }

  TRIBUTARY_DEVICE void run(float* dst, int width, int lane) const {
    Chunk values[kChunks][kSlots];
    int first = lane * kFloats;
    load(first, width, values);  // before lse: one wait for both
    Blend blends[kSlots];        // of the slots that are right sides: each is one once
    const float merged = weigh(blends);
    while (first < width) {
      TRIBUTARY_UNROLL
      for (int c = 0; c < kChunks; ++c) {
        const int at = first + c * kStep;
        const Chunk result = reduce(values[c], blends);
        if (at < width) *reinterpret_cast<Chunk*>(dst + column_ + at) = result;
      }
      first += kChunks * kStep;
      load(first, width, values);
    }
    ptx::sync_warp();  // all lanes have read the lse that may be overwritten
    if (lane == 0) dst[lse_] = merged;
  }

 private:
  using Chunk = MergeChunk<kFloats>;
  static constexpr int kChunks = kMergeBatch / kSlots;
  static constexpr int kStep = 32 * kFloats;  // columns of a warp's chunks

  /// Chunks of all inputs from column `first` on; zeros where there is none.
  TRIBUTARY_DEVICE void load(int first, int width, Chunk (&values)[kChunks][kSlots]) const {
    TRIBUTARY_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      TRIBUTARY_UNROLL
      for (int i = 0; i < kSlots; ++i) {
        const int at = first + c * kStep;
        values[c][i] = {};
        if (inputs_[i] != nullptr && at < width) {
          values[c][i] = *reinterpret_cast<const Chunk*>(inputs_[i] + column_ + at);
        }
      }
    }
  }

  /// The blends of all nodes, and the root's lse.
  TRIBUTARY_DEVICE float weigh(Blend (&blends)[kSlots]) const {
    float lse[kSlots];
    TRIBUTARY_UNROLL
    for (int i = 0; i < kSlots; ++i) lse[i] = inputs_[i] == nullptr ? 0 : inputs_[i][lse_];
    TRIBUTARY_UNROLL
    for (int half = 1; half < kSlots; half *= 2) {
      TRIBUTARY_UNROLL
      for (int i = 0; i < kSlots; i += 2 * half) {
        if (inputs_[i + half] == nullptr) continue;  // the left one, whatever it is
        blends[i + half] = blend_of(lse[i], lse[i + half]);
        lse[i] = blends[i + half].lse;
      }
    }
    return lse[0];
  }

  TRIBUTARY_DEVICE static Chunk reduce(Chunk (&values)[kSlots], const Blend (&blends)[kSlots]) {
    TRIBUTARY_UNROLL
    for (int half = 1; half < kSlots; half *= 2) {
      TRIBUTARY_UNROLL
      for (int i = 0; i < kSlots; i += 2 * half) {
        TRIBUTARY_UNROLL
        for (int f = 0; f < kFloats; ++f) {
          values[i].at[f] = blended(blends[i + half], values[i].at[f], values[i + half].at[f]);
        }
      }
    }
    return values[0];
  }

  const float* inputs_[kSlots];
  std::size_t column_, lse_;
};

template <int kFloats>
TRIBUTARY_DEVICE void merge_head(const MergeLaunch& launch, const MergeTree& tree, int token,
                                 int head, int lane) {
  const std::size_t record =
      static_cast<std::size_t>(launch.heads) * (static_cast<std::size_t>(launch.width) + 1);
  const std::size_t column = static_cast<std::size_t>(head) * launch.width;
  const std::size_t lse = static_cast<std::size_t>(launch.heads) * launch.width + head;
  if (tree.inputs[1] == kNoState && tree.slots == 2 && tree.inputs[0] == tree.dst) return;
  float* dst = record_of(launch.states, launch.scratch, tree.dst + token, record);
  const auto merge = [&](const auto& inputs) { inputs.run(dst, launch.width, lane); };
  if (tree.slots == 2) {
    merge(MergeHead<kFloats, 2>(launch, tree, token, column, lse, record));
  } else if (tree.slots == 4) {
    merge(MergeHead<kFloats, 4>(launch, tree, token, column, lse, record));
  } else {
    merge(MergeHead<kFloats, 8>(launch, tree, token, column, lse, record));
  }
}

/// Moves 16 bytes per lane where everything is aligned to that.
TRIBUTARY_DEVICE void merge_head(const MergeLaunch& launch, const MergeTree& tree, int token,
                                 int head) {
  const auto bases = reinterpret_cast<std::uintptr_t>(launch.states) |
                     reinterpret_cast<std::uintptr_t>(launch.scratch);
  const bool quads = bases % 16 == 0 && launch.width % 4 == 0 && launch.heads % 4 == 0;
  const int lane = static_cast<int>(ptx::thread()) % 32;
  quads ? merge_head<4>(launch, tree, token, head, lane)
        : merge_head<1>(launch, tree, token, head, lane);
}

TRIBUTARY_DEVICE void merge_block(const MergeLaunch& launch) {
  const MergeTree& tree = launch.trees[ptx::block()];
  const int head =
      static_cast<int>(ptx::block_y()) * kMergeWarps + static_cast<int>(ptx::thread()) / 32;
  if (head >= launch.heads) return;
  for (int token = 0; token < tree.tokens; ++token) merge_head(launch, tree, token, head);
}

/// The tree that is merged after a unit; null if there is none.
TRIBUTARY_DEVICE const MergeTree* tree_after(const AttendLaunch& launch, int unit) {
  if (launch.task_trees == nullptr) return nullptr;
  const std::int32_t tree = launch.task_trees[launch.units[unit].task];
  return tree < 0 ? nullptr : launch.trees + tree;
}
/// Merges that tree for up to `rows` rows of the unit, from `skipped` on. The first `warps` warps
/// of the block do it, which stored the rows in all tasks of the tree; a barrier lies between.
/// Everything is read anew, so nothing has to stay in registers until then.
TRIBUTARY_DEVICE void merge_unit(const AttendLaunch& launch, int unit, int rows, int warps,
                                 int skipped = 0) {
  const MergeTree& tree = *tree_after(launch, unit);
  const MergeLaunch merge{nullptr,       0, launch.heads, launch.layout.kv_lora_rank, launch.states,
                          launch.scratch};
  const int first = launch.units[unit].first_row + skipped;
  const int all = tree.tokens * launch.heads;
  const int end = first + rows < all ? first + rows : all;
  for (int row = first + static_cast<int>(ptx::thread()) / 32; row < end; row += warps) {
    merge_head(merge, tree, row / launch.heads, row % launch.heads);
  }
}

}  // namespace tributary::cuda
