// The interface that the pool and the MLA layer need from a device: memory, a cache of latent rows,
// and the arithmetic of a layer. Implementations: kernels/reference (float64), kernels/cpu,
// kernels/cuda.
//
// Arithmetic is asked for with calls, which are data (calls.h); memory, marks and waits are plain
// functions. Only the backend reads device memory; on the CPU it is the host's. One thread uses a
// backend, except for rows from outside. Calls are executed in order and may return before the work
// is done: synchronize() waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/limits.h"
#include "core/interface/calls.h"
#include "core/model/row_format.h"

namespace tributary {

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

/// Logical cache: [layer][page][kPageTokens][latent_dim]. The backend decides how pages lie in
/// memory.
struct CacheLayout {
  int layers = 0;
  int pages = 0;
  int kv_lora_rank = 0;
  int qk_rope_head_dim = 0;
  RowFormat row_format = RowFormat::kBF16;

  [[nodiscard]] int latent_dim() const noexcept { return kv_lora_rank + qk_rope_head_dim; }
  [[nodiscard]] RowLayout row() const noexcept {
    return {row_format, kv_lora_rank, qk_rope_head_dim};
  }
  /// Bytes of one latent row of one layer.
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row().bytes(); }
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

/// Says that a view's values are FP8 e4m3 numbers times scales, in fp32. A backend may keep them in
/// this form, one byte each, if it recovers the values exactly. The scales are those of the
/// published matrix, row-major [.., cols], in blocks of kScaleBlock x kScaleBlock: [.., ceil(cols /
/// kScaleBlock)].
struct BlockScales {
  const float* data = nullptr;  // null: nothing is known
  std::int64_t cols = 0;        // >= 1 if there is data
  std::int64_t first = 0;       // index in the matrix of the view's first element, >= 0
};

/// Host view of `batch` matrices [rows, cols]; strides in elements, so a transpose is a stride.
struct WeightView {
  const void* data = nullptr;
  DType dtype = DType::kF32;  // kF32 or kBF16
  std::int64_t batch = 1, rows = 0, cols = 0;
  std::int64_t batch_stride = 0, row_stride = 0, col_stride = 1;
  BlockScales scales = {};  // for kF32 alone; read by make_weight
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

/// Calls of a backend that can be repeated as a whole with other plan data (Backend::record). The
/// buffers, caches and weights that they name must exist whenever it is replayed; the backend
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

  /// Whether the host can read through device pointers, as communicators of host memory require.
  /// Where it is false, exchanges of device memory need a communicator that knows the device.
  [[nodiscard]] virtual bool host_memory() const noexcept { return true; }

  /// Uninitialised memory, aligned to 64 bytes at least. Throws kPoolFull when there is none.
  [[nodiscard]] virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) = 0;
  /// Host to device and back; `dst` is readable when the call returns.
  virtual void upload(std::byte* dst, std::span<const std::byte> src) = 0;
  virtual void download(std::span<std::byte> dst, const std::byte* src) = 0;
  /// Waits for all enqueued work; throws kDeadlineExceeded.
  virtual void synchronize(Deadline deadline) = 0;

  /// Moments of the device's own time, which give the times of a round's phases: mark(i), 0 <= i <
  /// kMarks, is the moment when all work enqueued before it is done. After a synchronize(), returns
  /// the microseconds from one mark to another, each the latest of its number. No value where calls
  /// return when their work is done: there the host's clock tells.
  static constexpr int kMarks = 8;
  virtual void mark(int /*index*/) {}
  [[nodiscard]] virtual std::optional<double> microseconds_between(int /*first*/, int /*second*/) {
    return {};
  }

  [[nodiscard]] virtual std::unique_ptr<Cache> make_cache(const CacheLayout& layout) = 0;
  [[nodiscard]] virtual std::unique_ptr<Weight> make_weight(const WeightView& view) = 0;

  // Rows from outside may be stored from any thread, also while other calls run, as long as nobody
  // reads or writes the same rows. Calls that are made after this one returned see them.

  /// The kPageTokens rows of a page of one layer, [kPageTokens] rows in the cache's format, in host
  /// memory that may be written directly. Empty where the backend stores them otherwise.
  [[nodiscard]] virtual std::span<std::byte> host_page(Cache& cache, int layer,
                                                       std::int32_t page) = 0;
  /// Stores rows slot, slot + 1, ... of a page; the size gives their number.
  virtual void store_rows(Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                          std::span<const std::byte> rows) = 0;
  /// Loads the same rows back to the host. Call it from the backend's thread, after synchronize().
  virtual void load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                         std::span<std::byte> rows) = 0;

  /// Enqueues the call. Throws kInvalidArgument with the field, the value and the bound before
  /// anything is done. Memory behind pointers cannot be checked; it must exist until the work is
  /// done. The call's plan data may be freed when this returns.
  void call(const Call& call);
  /// Enqueues each, in order.
  void call(std::span<const Call> calls);

  // Lists of calls, for backends that execute a list at a lower cost than its calls one by one (a
  // CUDA graph). A recording's plan data is at a fixed place on the device and may change from one
  // replay to the next; everything else stays as recorded. record() and refill() walk the list
  // several times; it may be freed when they return.
  //
  //   right: recording = record(calls); replay(*recording);
  //          refill(*recording, the calls with the next plan) && replay(*recording);
  //   wrong: refill() with calls in another order or with another buffer: it returns false and
  //          changes nothing.

  /// Records the calls without executing them: with their plan data, and room for some more. Null
  /// if the backend gains nothing from recordings.
  [[nodiscard]] std::unique_ptr<Recording> record(std::span<const Call> calls);
  /// Sets the plan data of all later replays. Returns false if these are not the recorded calls or
  /// their plan data exceeds the room; record them again then.
  [[nodiscard]] bool refill(Recording& recording, std::span<const Call> calls);
  /// Enqueues the recorded calls.
  virtual void replay(const Recording& /*recording*/) {}

 protected:
  /// Enqueues a call that is valid and has work to do. The backend checks that caches and weights
  /// are its own. Returns false, without any effect, if the backend does not fuse this operation;
  /// it then gets the operation's parts.
  [[nodiscard]] virtual bool do_call(const Call& call) = 0;
  /// Passes a valid call, or its parts, to do_call. do_record and do_refill use it for each call.
  void hand_on(const Call& call);

  // Records valid calls.
  [[nodiscard]] virtual std::unique_ptr<Recording> do_record(std::span<const Call> /*calls*/) {
    return nullptr;
  }
  [[nodiscard]] virtual bool do_refill(Recording& /*recording*/, std::span<const Call> /*calls*/) {
    return false;
  }
};

}  // namespace tributary
