// The instruction-set-specific half of the CPU backend: one table of functions for each instruction
// set in this build, found by name. A backend keeps its table. There is no global choice, so that
// backends with different instruction sets can work side by side.
//
// Functions take valid arguments (core/interface/validate.h), run on the calling thread, allocate
// nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"
#include "core/interface/backend.h"
#include "kernels/cpu/processor_choice.h"
#include "kernels/cpu/row_gather.h"

namespace tributary::cpu {

/// Every matrix product here is C[rows][kPanel] from A[rows][depth] and a packed panel
/// B[depth][kPanel], `depth` cut into blocks of kPanelDepth: the block of B (16 KiB as fp32) stays
/// in the first-level cache while all rows of A use it. This decides the bits: a sum is a chain of
/// fused multiply-adds inside a block and a chain of additions over blocks, whatever the tiling.
inline constexpr std::size_t kPanel = 64;
inline constexpr std::size_t kPanelDepth = 64;
/// Attention works on the rows of one page at a time, so that blocks start where leaves do.
inline constexpr std::size_t kBlockRows = kPageTokens;
static_assert(kBlockRows == kPanel, "scores of a block are one panel wide");
static_assert(kBlockRows <= kPanelDepth, "weighted values of a block are one panel deep");

/// Largest number of query rows (heads x tokens) of a unit of work. Unpacking a page costs the same
/// for any number of rows, so more is better until queries, outputs and page (2.3 + 2.0 KiB a row
/// and 290 KiB on 512 + 64) outgrow the second-level cache. Does not affect the bits.
inline constexpr std::size_t kMaxQueryRows = 128;

[[nodiscard]] constexpr std::size_t round_up(std::size_t value, std::size_t to) noexcept {
  return (value + to - 1) / to * to;
}

/// Calls of up to this many heads may be computed another way, whose bits are others.
inline constexpr std::size_t kFewHeads = 16;

/// Scratch memory of one thread's attention; pointers into one allocation, each aligned to a cache
/// line. `depth` is the length of a score's dot product, `width` that of a value.
struct AttendWorkspace {
  float* query = nullptr;    // [kMaxQueryRows][depth, or rounded up to kPanel]
  float* keys = nullptr;     // [depth][kBlockRows]: lanes are rows of the cache
  float* values = nullptr;   // [ceil(width / kPanel)][kBlockRows][kPanel]
  float* scores = nullptr;   // [kMaxQueryRows][kBlockRows], then the weights in their place
  float* output = nullptr;   // [kMaxQueryRows][width rounded up to kPanel]
  float* max = nullptr;      // [kMaxQueryRows], as the three below: the running maximum
  float* sum = nullptr;      // of the weights so far
  float* rescale = nullptr;  // factor of the sums before this block
  float* block_sum = nullptr;
  std::int32_t* visible = nullptr;  // [kMaxQueryRows]: cache rows that a query row sees

  [[nodiscard]] static std::size_t floats(std::size_t depth, std::size_t width) noexcept;
  [[nodiscard]] static AttendWorkspace carve(float* memory, std::size_t depth,
                                             std::size_t width) noexcept;
};

/// Attention of heads [head_begin, head_end) of one leaf task. tokens * heads <= kMaxQueryRows.
struct LeafKernelArgs {
  const LeafTask* task = nullptr;
  const std::byte* layer = nullptr;           // page p at layer + p * page_bytes
  std::size_t page_bytes = 0, row_bytes = 0;  // from one to the next
  RowFormat row_format = RowFormat::kBF16;
  const std::int32_t* pages = nullptr;  // of this leaf
  std::size_t kv_lora_rank = 0, latent_dim = 0;
  const std::byte* queries = nullptr;  // of the task's first token, [heads][latent_dim]
  std::size_t query_stride_bytes = 0;  // between tokens
  DType query_dtype = DType::kBF16;
  std::size_t heads = 0, head_begin = 0, head_end = 0;
  float softmax_scale = 0;
  float* states = nullptr;  // record of the task's first token
  // Pages that this thread will probably read next, to prefetch; may be null.
  std::array<const std::byte*, 2> next_pages{};
  PrefetchInto prefetch = PrefetchInto::kFirstLevel;
  // Brings the rows of each block into `pages`, which has to be asked for; null: they are there.
  RowGather* gather = nullptr;
};

/// How tasks of one number of tokens are cut into units of work, in query rows (heads x tokens).
struct UnitCut {
  std::size_t least_rows = 0;  // of a unit, if the call has as many
  std::size_t most_rows = 0;
  std::size_t quantum = 1;  // a unit's rows are a multiple of it, if the call has as many
};

/// Attention of bf16 queries over bf16 rows with instructions that multiply pairs of bf16 and add
/// both products to an fp32 sum: BF16 dot products, tiles. The weights of the values are rounded to
/// bf16 after they are summed.
struct PairKernel {
  /// Rows of the cache that are read at a time, whole pages.
  std::size_t block_rows = 0;
  /// Whether it supports the shape; other shapes use the fp32 kernels.
  bool (*supports)(std::size_t latent_dim, std::size_t kv_lora_rank);
  /// Scratch memory of one thread, aligned to a cache line.
  std::size_t (*scratch_bytes)(std::size_t latent_dim, std::size_t kv_lora_rank);
  /// For calls of `heads` heads. `copies`: each unit copies the rows of its task, so that fewer
  /// units copy less. How work is cut does not affect the bits.
  UnitCut (*unit_cut)(std::size_t heads, std::size_t tokens, bool copies);
  /// Computes a unit that was cut this way.
  void (*attend_leaf)(const LeafKernelArgs&, std::byte* scratch);
};

/// One head of tokens [token_begin, token_end). token_end - token_begin <= kMaxQueryRows.
struct DenseKernelArgs {
  const DenseAttendArgs* call = nullptr;
  std::size_t head = 0, token_begin = 0, token_end = 0;
};

/// Merges heads [head_begin, head_end) of one record. dst may be left or right.
struct MergeKernelArgs {
  std::size_t heads = 0, width = 0, head_begin = 0, head_end = 0;
  const float* left = nullptr;
  const float* right = nullptr;
  float* dst = nullptr;
};

/// Tokens that share one widening of a panel block. More would evict x and the sums from the
/// second-level cache.
inline constexpr std::size_t kGemmTokens = 128;
/// Floats of scratch: a widened block of the panel, then sums of kGemmTokens tokens.
inline constexpr std::size_t kGemmScratch = kPanel * kPanelDepth + kGemmTokens * kPanel;

/// Bytes of the first `cols` columns of a panel: where column `cols` starts, for whole blocks of
/// kPanelDepth. In FP8 the scales of its outputs (f8_code.h) precede each block of columns:
/// [kPanel] fp32, then [up to kPanelDepth][kPanel] codes.
[[nodiscard]] constexpr std::size_t panel_bytes(DType dtype, std::size_t cols) noexcept {
  const std::size_t scales =
      dtype == DType::kF8E4M3 ? ceil_div(cols, kPanelDepth) * kPanel * sizeof(float) : 0;
  return scales + cols * kPanel * dtype_bytes(dtype);
}

/// y[t][0 .. outputs) = panel x[t] for up to kGemmTokens tokens; outputs <= kPanel.
struct GemmKernelArgs {
  const std::byte* panel = nullptr;  // [cols][kPanel] of `dtype`, FP8 as panel_bytes() says
  DType dtype = DType::kF32;         // kF32, kBF16 or kF8E4M3
  std::size_t cols = 0, outputs = 0, tokens = 0;
  const float* x = nullptr;
  std::size_t x_token_stride = 0;
  const std::byte* packed = nullptr;  // x as its kernel's pack() wrote it; null: it is not packed
  float* y = nullptr;
  std::size_t y_token_stride = 0;
};

/// kPanelDepth columns of x from `column`, a multiple of it, on (fewer at the end), of up to
/// kGemmTokens tokens.
struct PackKernelArgs {
  std::size_t tokens = 0, cols = 0, column = 0;
  const float* x = nullptr;
  std::size_t x_token_stride = 0;
  std::byte* packed = nullptr;  // of all columns: packed_bytes()
};

/// A product, and the form in which it reads x: packed once a call for all panels.
struct GemmKernel {
  /// For all columns of `tokens` tokens that meet `panels` panels. 0: x is read where it lies.
  std::size_t (*packed_bytes)(std::size_t tokens, std::size_t cols, std::size_t panels) = nullptr;
  void (*pack)(const PackKernelArgs&) = nullptr;
  void (*multiply)(const GemmKernelArgs&, float* scratch) = nullptr;
};

/// The heads of one token: y[i] = x[i] cosines[i] + (the other of i's pair) sines[i], in double.
/// y may be x.
struct RotateKernelArgs {
  const float* x = nullptr;
  std::size_t x_head_stride = 0;
  const double* cosines = nullptr;  // [width]; width is even
  const double* sines = nullptr;
  std::size_t heads = 0, width = 0;
  float* y = nullptr;
  std::size_t y_head_stride = 0;
};

struct KernelTable {
  std::string_view name;  // `AVX3`, as Highway calls its targets
  void (*attend_leaf)(const LeafKernelArgs&, const AttendWorkspace&);
  void (*attend_dense)(const DenseKernelArgs&, const AttendWorkspace&);
  void (*merge)(const MergeKernelArgs&);
  /// For panels of fp32, bf16 and FP8. The last two differ from the first if the instruction set
  /// has a better way, which is as exact, but has other bits.
  GemmKernel gemm, gemm_bf16, gemm_f8;
  void (*rms_norm)(const float* x, const float* weight, float eps, std::size_t width, float* y);
  void (*rotate)(const RotateKernelArgs&);
  void (*to_bf16)(const float* src, bf16* dst, std::size_t count);
  void (*to_float)(const bf16* src, float* dst, std::size_t count);
  WidenCodes widen_codes;
  // The vector approximations, for their tests.
  void (*exp_not_positive)(const float* src, float* dst, std::size_t count);
  void (*log)(const float* src, float* dst, std::size_t count);
  std::size_t lanes;               // floats in a vector
  float (*sum)(const float* src);  // of `lanes` floats
  /// Null if the instruction set has no such instructions.
  const PairKernel* pairs = nullptr;
  /// Calls with more heads use the fp32 kernels.
  std::size_t pairs_most_heads = std::numeric_limits<std::size_t>::max();
};

/// The tables that this machine can run. The one that decodes best on its processor comes first
/// (processor_choice.h), the others by their instructions; never empty.
[[nodiscard]] std::span<const KernelTable* const> usable_kernel_tables();
/// The reason why the first one is first: a line of text.
[[nodiscard]] const std::string& kernel_table_reason();
/// This processor's, whichever table is taken.
[[nodiscard]] PrefetchInto prefetch_into();

/// Makes a backend on any table, which outlives it; for tables that make_cpu_backend() does not
/// list, such as an emulated one. Throws kInvalidArgument for a thread count out of range.
[[nodiscard]] std::unique_ptr<Backend> make_table_backend(const KernelTable& table, int threads);

}  // namespace tributary::cpu
