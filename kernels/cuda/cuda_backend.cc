// Validation, the streams, and how each call becomes launches; the work is in the kernels.
#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "core/base/error.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/fast_order.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/projection.h"
#include "kernels/cuda/staging.h"
#include "kernels/cuda/support.h"
#include "kernels/validate.h"

namespace tributary {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace): the folder's own

/// Of the waits that the interface gives no deadline: far above any copy, below a pool's deadlines.
constexpr auto kCopyTimeout = std::chrono::seconds(60);

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "asking for a device's properties");
  return value;
}

CudaDevice find_device(int ordinal) {
  const CudaStatus status = cuda_status();
  if (!status.problem.empty()) {
    fail(ErrorCode::kUnsupported, "backend cuda cannot run here: {}", status.problem);
  }
  const auto found = std::ranges::find(status.devices, ordinal, &CudaDevice::ordinal);
  if (found == status.devices.end()) {
    fail(ErrorCode::kInvalidArgument, "CUDA device is {}, this process may use {}", ordinal,
         status.devices.size());
  }
  use_device(ordinal);
  return *found;
}

/// Rows to and from the cache, from any thread: a stream and page-locked memory of its own.
class RowCopies {
 public:
  RowCopies() : stream_(make_stream()) {}

  void store(std::byte* to, std::span<const std::byte> rows) {
    const std::lock_guard lock(mutex_);
    reserve(rows.size());
    std::copy(rows.begin(), rows.end(), memory_.get());
    check(cudaMemcpyAsync(to, memory_.get(), rows.size(), cudaMemcpyHostToDevice, stream_.get()),
          "storing rows");
    wait_for(stream_.get(), Deadline::after(kCopyTimeout), "storing rows");
  }
  void load(std::span<std::byte> rows, const std::byte* from) {
    const std::lock_guard lock(mutex_);
    reserve(rows.size());
    check(cudaMemcpyAsync(memory_.get(), from, rows.size(), cudaMemcpyDeviceToHost, stream_.get()),
          "loading rows");
    wait_for(stream_.get(), Deadline::after(kCopyTimeout), "loading rows");
    std::copy_n(memory_.get(), rows.size(), rows.begin());
  }

 private:
  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    memory_ = allocate_pinned(bytes);
    bytes_ = bytes;
  }

  std::mutex mutex_;
  Stream stream_;
  Pinned memory_;
  std::size_t bytes_ = 0;  // at most a page, which is what the interface hands over at once
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : device_(find_device(options.device)),
        limits_{.compute_capability = device_.compute_capability,
                .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, options.device),
                .shared_bytes = static_cast<std::size_t>(
                    attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, options.device))},
        fast_(options.fast_merge_order),
        name_(fmt::format("cuda/{}/sm_{}/cublaslt-{}{}", device_.name, device_.compute_capability,
                          cublaslt().version(), fast_ ? "/fast" : "")),
        stream_(make_stream()),
        staging_(stream()),
        projection_(stream()) {
    std::ranges::generate(marks_, make_timing_event);
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;
  // Members free memory of the thread's device.
  ~CudaBackend() override { (void)cudaSetDevice(device_.ordinal); }

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] bool host_memory() const noexcept override { return false; }
  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_.get(); }

  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    enter();
    return std::make_unique<CudaBuffer>(allocate_device(bytes, "a buffer"), bytes);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override {
    if (src.empty()) return;
    enter();
    // From pageable memory this returns when `src` was copied into the driver's own memory.
    check(cudaMemcpyAsync(dst, src.data(), src.size(), cudaMemcpyHostToDevice, stream()), "upload");
  }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    if (dst.empty()) return;
    enter();
    // A copy to pageable memory blocks: what comes before it is waited for with a deadline.
    wait_for(stream(), Deadline::after(kCopyTimeout), "download");
    check(cudaMemcpyAsync(dst.data(), src, dst.size(), cudaMemcpyDeviceToHost, stream()),
          "download");
    wait_for(stream(), Deadline::after(kCopyTimeout), "download");
  }
  void synchronize(Deadline deadline) override {
    enter();
    wait_for(stream(), deadline, "synchronize");
  }

  void mark(int index) override {
    enter();
    check(cudaEventRecord(marks_.at(static_cast<std::size_t>(index)).get(), stream()),
          "recording an event");
  }
  [[nodiscard]] std::optional<double> microseconds_between(int first, int second) override {
    enter();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, marks_.at(static_cast<std::size_t>(first)).get(),
                               marks_.at(static_cast<std::size_t>(second)).get()),
          "asking for the time between events");
    return 1e3 * milliseconds;
  }

  [[nodiscard]] std::unique_ptr<Cache> make_cache(const CacheLayout& layout) override {
    check_layout(layout);
    enter();
    auto cache = std::make_unique<CudaCache>(layout, this);
    if (choose_kernel(kManyHeads, layout, DType::kBF16, limits_.compute_capability) ==
        AttendKernel::kManyRows) {
      cache->make_map();
    }
    return cache;
  }
  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    check_weight(view);
    enter();
    return projection_.make_weight(view, this);
  }

  [[nodiscard]] std::span<std::byte> host_page(Cache& cache, int layer,
                                               std::int32_t page) override {
    check_page(own_cache(cache, this).layout(), "host_page", layer, page);
    return {};
  }
  void store_rows(Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                  std::span<const std::byte> rows) override {
    const CudaCache& own = own_cache(cache, this);
    check_rows(own.layout(), "store_rows", layer, page, slot, rows.size());
    if (rows.empty()) return;
    enter();
    row_copies_.store(own.row(layer, page, slot), rows);
  }
  void load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                 std::span<std::byte> rows) override {
    const CudaCache& own = own_cache(cache, this);
    check_rows(own.layout(), "load_rows", layer, page, slot, rows.size());
    if (rows.empty()) return;
    enter();
    row_copies_.load(rows, own.row(layer, page, slot));
  }

  void append(Cache& cache, const AppendArgs& args) override {
    const CudaCache& own = own_cache(cache, this);
    check_append(own.layout(), args);
    if (args.tasks.empty()) return;
    enter();
    const auto [tasks, item_layer] = staging_.upload(args.tasks, args.item_layer);
    cuda::append({.tasks = tasks,
                  .count = std::ssize(args.tasks),
                  .item_layer = item_layer,
                  .source = args.source,
                  .source_stride_bytes = args.source_stride_bytes,
                  .cache = own.data(),
                  .pages = own.layout().pages,
                  .row_bytes = own.layout().row_bytes()},
                 stream());
  }
  void attend(const Cache& cache, const AttendArgs& args) override {
    const CudaCache& own = own_cache(cache, this);
    check_attend(own.layout(), args);
    if (args.tasks.empty()) return;
    enter();
    const AttendKernel kernel =
        choose_kernel(args.heads, own.layout(), args.query_dtype, limits_.compute_capability);
    const int most_tokens = std::ranges::max_element(args.tasks, {}, &LeafTask::tokens)->tokens;
    const int rows = unit_rows(kernel, args.heads, most_tokens, limits_);
    AttendLaunch launch{.cache = own.data(),
                        .layout = own.layout(),
                        .queries = args.queries,
                        .query_stride_bytes = args.query_stride_bytes,
                        .query_dtype = args.query_dtype,
                        .heads = args.heads,
                        .softmax_scale = args.softmax_scale,
                        .states = args.states,
                        .unit_rows = rows,
                        .parts = attend_parts(kernel, rows, limits_),
                        .kernel = kernel,
                        .cache_map = own.map()};
    if (fast_) {
      attend_fast(args, launch);
    } else {
      enqueue(launch, args, args.tasks,
              schedule_attend(args.tasks, args.heads, rows, launch.parts));
    }
  }
  void merge(const MergeArgs& args) override {
    check_merge(args);
    if (args.ops.empty()) return;
    enter();
    const auto [ops] = staging_.upload(args.ops);
    cuda::merge(ops, static_cast<int>(args.ops.size()), args.shape, args.states, stream());
  }
  void gather(const GatherArgs& args) override {
    check_gather(args);
    if (args.index.empty()) return;
    enter();
    const auto [index] = staging_.upload(args.index);
    cuda::gather({.index = index,
                  .count = std::ssize(args.index),
                  .src = args.src,
                  .dst = args.dst,
                  .record_bytes = args.record_bytes},
                 stream());
  }

  void gemm(const GemmArgs& args) override {
    check_gemm(args);
    const auto* weight = dynamic_cast<const CudaWeight*>(args.weight);
    if (weight == nullptr || weight->owner() != this) {
      fail(ErrorCode::kInvalidArgument, "gemm: weight was not made by backend {}", name_);
    }
    if (args.tokens == 0) return;
    enter();
    projection_.gemm(*weight, args);
  }
  void rms_norm(const RmsNormArgs& args) override {
    check_rms_norm(args);
    if (args.tokens == 0) return;
    enter();
    cuda::rms_norm(args, stream());
  }
  void rope(const RopeArgs& args) override {
    check_rope(args);
    if (args.positions.empty()) return;
    enter();
    const auto [positions, frequencies] = staging_.upload(args.positions, args.frequencies);
    cuda::rope({.positions = positions,
                .frequencies = frequencies,
                .tokens = std::ssize(args.positions),
                .pairs = std::ssize(args.frequencies),
                .heads = args.heads,
                .x = args.x,
                .x_token_stride = args.x_token_stride,
                .x_head_stride = args.x_head_stride,
                .y = args.y,
                .y_token_stride = args.y_token_stride,
                .y_head_stride = args.y_head_stride},
               stream());
  }
  void convert(const ConvertArgs& args) override {
    check_convert(args);
    if (args.rows == 0) return;
    enter();
    cuda::convert(args, stream());
  }
  void attend_dense(const DenseAttendArgs& args) override {
    check_dense(args);
    if (args.tokens == 0) return;
    enter();
    cuda::attend_dense(args, stream());
  }

 private:
  /// Any number of heads that the many-rows kernel takes where it takes some.
  static constexpr int kManyHeads = 128;

  void enter() const { use_device(device_.ordinal); }

  /// Sends the plan and launches.
  void enqueue(AttendLaunch& launch, const AttendArgs& args, std::span<const LeafTask> tasks,
               const AttendSchedule& schedule) {
    std::tie(launch.tasks, launch.part_begin, launch.units, launch.block_table, launch.item_layer) =
        staging_.upload(tasks, std::span<const std::int32_t>(schedule.part_begin),
                        std::span<const WorkUnit>(schedule.units), args.block_table,
                        args.item_layer);
    cuda::attend(launch, stream());
  }

  /// The pieces, and their merges.
  void attend_fast(const AttendArgs& args, AttendLaunch& launch) {
    const FastOrder order = fast_order(args.tasks, args.heads, launch.unit_rows, launch.parts);
    const StateShape shape{args.heads, launch.layout.kv_lora_rank};
    const std::size_t bytes =
        static_cast<std::size_t>(order.scratch_records) * shape.record_bytes();
    if (bytes > scratch_bytes_) {
      wait_for(stream(), Deadline::after(kCopyTimeout), "waiting for scratch memory");
      scratch_ = nullptr;
      scratch_bytes_ = 0;
      scratch_ = allocate_device(bytes, "partial states");
      scratch_bytes_ = bytes;
    }
    launch.scratch = reinterpret_cast<float*>(scratch_.get());
    enqueue(launch, args, order.tasks, order.schedule);
    for (const std::vector<MergeOp>& ops : order.merges) {
      const auto [placed] = staging_.upload(std::span<const MergeOp>(ops));
      cuda::merge(placed, static_cast<int>(ops.size()), shape, args.states, stream(),
                  launch.scratch);
    }
  }

  const CudaDevice device_;
  const DeviceLimits limits_;
  const bool fast_;
  const std::string name_;
  Stream stream_;
  Staging staging_;
  Projection projection_;
  RowCopies row_copies_;
  std::array<Event, kMarks> marks_;
  // Of the fast order: grows with the largest plan.
  DeviceBytes scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  return std::make_unique<CudaBackend>(options);
}

CUstream_st* cuda_stream(const Backend& backend) {
  const auto* own = dynamic_cast<const CudaBackend*>(&backend);
  return own == nullptr ? nullptr : own->stream();
}

}  // namespace tributary
