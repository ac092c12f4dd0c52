// What the pool and the MLA layer need from a device: memory, a cache of latent rows, and the
// arithmetic of a layer. Implementations: kernels/reference (float64), kernels/cpu, later
// kernels/cuda.
//
// Parameter structs are plain data. Pointers are device pointers of the backend that is called,
// spans are host memory. Nobody but the backend reads device memory; on the CPU they coincide.
// Launchers validate and throw Error(kInvalidArgument); kernels assert. Calls come from one thread,
// are executed in order, and may return before the work is done: synchronize() waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/dtype.h"

namespace tributary {

/// Tokens per page, everywhere (what FlashMLA and vLLM use).
inline constexpr int kPageTokens = 64;
/// New tokens of one sequence in one step, at most.
inline constexpr int kMaxStepTokens = 16;

/// Owner of device memory.
class Buffer {
 public:
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  virtual ~Buffer() = default;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

 protected:
  Buffer(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* data_;
  std::size_t bytes_;
};

/// Logical cache: [layer][page][kPageTokens][latent_dim]. How pages lie in memory is the backend's.
struct CacheLayout {
  int layers = 0;
  int pages = 0;
  int kv_lora_rank = 0;
  int qk_rope_head_dim = 0;
  DType row_dtype = DType::kBF16;  // kBF16 or kF32

  [[nodiscard]] int latent_dim() const noexcept { return kv_lora_rank + qk_rope_head_dim; }
  /// Bytes of one latent row of one layer.
  [[nodiscard]] std::size_t row_bytes() const noexcept {
    return static_cast<std::size_t>(latent_dim()) * dtype_bytes(row_dtype);
  }
  friend bool operator==(const CacheLayout&, const CacheLayout&) = default;
};

/// A backend's page memory. Created by, and used with, one backend only.
class Cache {
 public:
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  virtual ~Cache() = default;
  [[nodiscard]] const CacheLayout& layout() const noexcept { return layout_; }

 protected:
  explicit Cache(const CacheLayout& layout) : layout_(layout) {}

 private:
  CacheLayout layout_;
};

/// Partial states of one token lie together in one record: `float o[heads][width]`, then
/// `float lse[heads]`. `o` is the softmax-weighted mean, `lse` the natural logarithm of the sum of
/// exp(scaled score); the empty set is o = 0, lse = -inf. An array of states is indexed by record.
struct StateShape {
  int heads = 0;
  int width = 0;  // kv_lora_rank, or v_head_dim

  [[nodiscard]] std::size_t record_floats() const noexcept {
    return static_cast<std::size_t>(heads) * (static_cast<std::size_t>(width) + 1);
  }
  [[nodiscard]] std::size_t record_bytes() const noexcept {
    return record_floats() * sizeof(float);
  }
  friend bool operator==(const StateShape&, const StateShape&) = default;
};

/// One latent row to store: source record -> slot of a page.
struct AppendTask {
  std::int32_t item = 0;    // index into AppendArgs::item_layer
  std::int32_t page = 0;    // 0 <= page < layout.pages
  std::int32_t slot = 0;    // 0 <= slot < kPageTokens
  std::int64_t source = 0;  // record index
};

struct AppendArgs {
  std::span<const AppendTask> tasks;
  std::span<const std::int32_t> item_layer;
  const std::byte* source = nullptr;    // row of record r at source + r * source_stride_bytes
  std::size_t source_stride_bytes = 0;  // rows are in the cache's row_dtype, latent_dim elements
};

/// Attention of one item's new tokens over the rows of one leaf.
/// Token i (0 <= i < tokens) sees the first clamp(query_position + i + 1 - leaf_begin, 0, rows)
/// rows of the leaf; none gives the empty state. Memory beyond `rows` is never read as a value.
struct LeafTask {
  std::int32_t item = 0;            // index into AttendArgs::item_layer
  std::int32_t tokens = 0;          // 1 .. kMaxStepTokens
  std::int32_t rows = 0;            // rows of the leaf that exist, >= 1
  std::int32_t first_page = 0;      // index into block_table of the leaf's first page
  std::int64_t leaf_begin = 0;      // global position of the leaf's first row
  std::int64_t query_position = 0;  // global position of the first token
  std::int64_t query = 0;           // record index of the first token's query
  std::int64_t state = 0;           // record index where the first token's state goes
  friend bool operator==(const LeafTask&, const LeafTask&) = default;
};

struct AttendArgs {
  std::span<const LeafTask> tasks;
  std::span<const std::int32_t> block_table;  // page numbers
  std::span<const std::int32_t> item_layer;
  const std::byte* queries = nullptr;  // query of record r at queries + r * query_stride_bytes:
  std::size_t query_stride_bytes = 0;  // [heads][latent_dim], absorbed part first, then RoPE part
  DType query_dtype = DType::kBF16;    // kBF16 or kF32
  int heads = 0;
  float softmax_scale = 0;
  float* states = nullptr;  // records of StateShape{heads, kv_lora_rank}
};

/// states[dst] = merge(states[left], states[right]) for `tokens` consecutive records;
/// right == kNoState copies left. dst may equal left. The formula is in design section 2.
inline constexpr std::int64_t kNoState = -1;
struct MergeOp {
  std::int64_t dst = 0;
  std::int64_t left = 0;
  std::int64_t right = kNoState;
  std::int32_t tokens = 0;
};

struct MergeArgs {
  std::span<const MergeOp> ops;  // independent of each other
  StateShape shape;
  float* states = nullptr;
};

/// dst record i = src record index[i]; record_bytes each.
struct GatherArgs {
  std::span<const std::int64_t> index;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::size_t record_bytes = 0;
};

/// Host view of `batch` matrices [rows, cols]; strides in elements, so a transpose is a stride.
struct WeightView {
  const void* data = nullptr;
  DType dtype = DType::kF32;  // kF32 or kBF16
  std::int64_t batch = 1, rows = 0, cols = 0;
  std::int64_t batch_stride = 0, row_stride = 0, col_stride = 1;
};

/// A weight as the backend wants it (reordered once, at load).
class Weight {
 public:
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;
  virtual ~Weight() = default;

  [[nodiscard]] std::int64_t batch() const noexcept { return batch_; }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t cols() const noexcept { return cols_; }

 protected:
  Weight(std::int64_t batch, std::int64_t rows, std::int64_t cols)
      : batch_(batch), rows_(rows), cols_(cols) {}

 private:
  std::int64_t batch_, rows_, cols_;
};

/// y[t, b, :] = W[b] x[t, b, :] for every token t and batch index b, fp32 in and out, fp32
/// accumulation at least. A token's result does not depend on the other tokens of the call.
/// Strides in elements.
struct GemmArgs {
  const Weight* weight = nullptr;
  std::int64_t tokens = 0;
  const float* x = nullptr;  // [tokens, batch, cols]
  std::int64_t x_token_stride = 0, x_batch_stride = 0;
  float* y = nullptr;  // [tokens, batch, rows]
  std::int64_t y_token_stride = 0, y_batch_stride = 0;
  friend bool operator==(const GemmArgs&, const GemmArgs&) = default;
};

/// y = x / sqrt(mean(x^2) + eps) * weight, per token. y may be x.
struct RmsNormArgs {
  std::int64_t tokens = 0;
  std::int64_t width = 0;
  const float* x = nullptr;
  std::int64_t x_token_stride = 0;
  const float* weight = nullptr;  // [width]
  float eps = 0;
  float* y = nullptr;
  std::int64_t y_token_stride = 0;
  friend bool operator==(const RmsNormArgs&, const RmsNormArgs&) = default;
};

/// Rotates adjacent pairs (2i, 2i + 1) of the last axis by position * frequency[i], angles in
/// double. y may be x.
struct RopeArgs {
  std::span<const std::int64_t> positions;  // [tokens]
  std::span<const double> frequencies;      // [dim / 2]
  std::int64_t heads = 0;
  const float* x = nullptr;  // [tokens, heads, dim]
  std::int64_t x_token_stride = 0, x_head_stride = 0;
  float* y = nullptr;
  std::int64_t y_token_stride = 0, y_head_stride = 0;
};

/// New latent rows: RMSNorm of their first part, RoPE of the rest, of equally many tokens and one
/// head. The parts do not overlap.
struct LatentRowsArgs {
  RmsNormArgs norm;
  RopeArgs rope;
};

/// Rows of floats to rows of `dtype` (kF32: a copy; kBF16: to nearest even), or back.
struct ConvertArgs {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  const void* src = nullptr;
  DType src_dtype = DType::kF32;
  std::size_t src_stride_bytes = 0;
  void* dst = nullptr;
  DType dst_dtype = DType::kF32;
  std::size_t dst_stride_bytes = 0;
  friend bool operator==(const ConvertArgs&, const ConvertArgs&) = default;
};

/// Attention in the MHA form over one chunk of keys, for prefill. Token t sees the keys whose
/// position key_position + j is at most query_position + t; its state does not depend on the other
/// tokens of the call, and a key that it does not see equals an absent one. Dense, contiguous,
/// fp32.
struct DenseAttendArgs {
  std::int64_t tokens = 0, keys = 0;
  int heads = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  std::int64_t query_position = 0, key_position = 0;
  float softmax_scale = 0;
  const float* q = nullptr;     // [tokens, heads, qk_nope_head_dim + qk_rope_head_dim]
  const float* kv = nullptr;    // [keys, heads, qk_nope_head_dim + v_head_dim]
  const float* k_pe = nullptr;  // [keys, qk_rope_head_dim]
  float* states = nullptr;      // [tokens] records of StateShape{heads, v_head_dim}
  friend bool operator==(const DenseAttendArgs&, const DenseAttendArgs&) = default;
};

/// Calls of a backend that can be made again as a whole, with other plan data (Backend::record).
/// The buffers, caches and weights that they name must exist whenever it is replayed; the backend
/// outlives it.
class Recording {
 public:
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  virtual ~Recording() = default;

 protected:
  Recording() = default;
};

class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// Name of the chosen kernels, for example `cpu/AVX3_ZEN4`. Two workers with equal names compute
  /// equal bits; a pool refuses to start when they differ.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Whether device pointers are pointers that the host can read: what communicators of host memory
  /// take. Where it is false, exchanges of device memory need one that knows the device.
  [[nodiscard]] virtual bool host_memory() const noexcept { return true; }

  /// Uninitialised memory, aligned to 64 bytes at least. Throws kPoolFull when there is none.
  [[nodiscard]] virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;
  /// Host to device and back; `dst` is readable when the call returns.
  virtual void upload(std::byte* dst, std::span<const std::byte> src) = 0;
  virtual void download(std::span<std::byte> dst, const std::byte* src) = 0;
  /// Waits for all that was enqueued; throws kDeadlineExceeded.
  virtual void synchronize(Deadline deadline) = 0;

  /// Moments of the device's own time, for the times of a round's phases: mark(i), 0 <= i < kMarks,
  /// is when all that was enqueued before it is done. After a synchronize(): the microseconds from
  /// one to another, of each the last; no value where calls return when their work is done, so that
  /// the host's clock tells.
  static constexpr int kMarks = 8;
  virtual void mark(int /*index*/) {}
  [[nodiscard]] virtual std::optional<double> microseconds_between(int /*first*/, int /*second*/) {
    return {};
  }

  [[nodiscard]] virtual std::unique_ptr<Cache> make_cache(const CacheLayout& layout) = 0;
  [[nodiscard]] virtual std::unique_ptr<Weight> make_weight(const WeightView& view) = 0;

  // Rows from outside, from any thread, also while other calls run, as long as nobody reads or
  // writes the same rows; visible to calls that are made after this one returned.

  /// The kPageTokens rows of a page of one layer, [kPageTokens, latent_dim] in the row type, in
  /// host memory that may be written directly; empty where the backend keeps them otherwise.
  [[nodiscard]] virtual std::span<std::byte> host_page(Cache& cache, int layer,
                                                       std::int32_t page) = 0;
  /// Rows slot, slot + 1, ... of a page; their number follows from the size.
  virtual void store_rows(Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                          std::span<const std::byte> rows) = 0;
  /// The same, back to the host. From the backend's thread, after synchronize().
  virtual void load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                         std::span<std::byte> rows) = 0;

  virtual void append(Cache& cache, const AppendArgs& args) = 0;
  virtual void attend(const Cache& cache, const AttendArgs& args) = 0;
  virtual void merge(const MergeArgs& args) = 0;
  virtual void gather(const GatherArgs& args) = 0;

  virtual void gemm(const GemmArgs& args) = 0;
  virtual void rms_norm(const RmsNormArgs& args) = 0;
  virtual void rope(const RopeArgs& args) = 0;
  /// The bits of both calls.
  virtual void latent_rows(const LatentRowsArgs& args) {
    rms_norm(args.norm);
    rope(args.rope);
  }
  virtual void convert(const ConvertArgs& args) = 0;
  virtual void attend_dense(const DenseAttendArgs& args) = 0;

  // Calls as a whole, where that is cheaper than to make them one by one (a CUDA graph). Their plan
  // data, which is all that spans hold, lies at a fixed place of the device and may change from one
  // replay to the next; everything else is as it was recorded. `calls` makes calls of append to
  // attend_dense above, and no others; they are not executed. `calls` may be called several times.
  //
  //   right: recording = record(calls); replay(*recording);
  //          refill(*recording, calls with the next plan) && replay(*recording);
  //   wrong: refill() with calls of another order or buffer: it says no, and nothing is changed.

  /// With the plan data of `calls`, and room for somewhat more. Null where calls are as cheap.
  [[nodiscard]] virtual std::unique_ptr<Recording> record(const std::function<void()>& /*calls*/) {
    return nullptr;
  }
  /// Plan data for the replays that are asked for from now on. False: these are not the recorded
  /// calls, or have more plan data than there is room for; record them anew.
  [[nodiscard]] virtual bool refill(Recording& /*recording*/,
                                    const std::function<void()>& /*calls*/) {
    return false;
  }
  /// Enqueues the recorded calls. May itself be part of a capture of the stream by an engine
  /// (cuda_stream): they become a part of the engine's graph then.
  virtual void replay(const Recording& /*recording*/) {}
};

}  // namespace tributary
