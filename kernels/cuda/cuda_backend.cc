// Validation, the streams, and how each call becomes launches; the work is in the kernels.
#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/fast_order.h"
#include "kernels/cuda/calls.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/projection.h"
#include "kernels/cuda/recording.h"
#include "kernels/cuda/row_copies.h"
#include "kernels/cuda/staging.h"
#include "kernels/cuda/support.h"
#include "kernels/validate.h"

namespace tributary {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace): the folder's own

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

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : device_(find_device(options.device)),
        limits_{.compute_capability = device_.compute_capability,
                .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, options.device),
                .shared_bytes = static_cast<std::size_t>(
                    attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, options.device))},
        fast_(options.fast_merge_order),
        graphs_(options.graphs),
        name_(fmt::format("cuda/{}/sm_{}/cublaslt-{}{}", device_.name, device_.compute_capability,
                          cublaslt().version(), fast_ ? "/fast" : "")),
        stream_(make_stream()),
        staging_(stream()),
        projection_(stream()) {
    std::ranges::generate(marks_, make_timing_event);
    load_attend(limits_);
    load_layer();
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;
  // Members free memory of the thread's device.
  ~CudaBackend() override { (void)cudaSetDevice(device_.ordinal); }

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] bool host_memory() const noexcept override { return false; }
  [[nodiscard]] cudaStream_t stream() const noexcept { return stream_.get(); }

  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    enter_unrecorded("allocate");
    return std::make_unique<CudaBuffer>(allocate_device(bytes, "a buffer"), bytes);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override {
    if (src.empty()) return;
    enter_unrecorded("upload");
    // From pageable memory this returns when `src` was copied into the driver's own memory.
    check(cudaMemcpyAsync(dst, src.data(), src.size(), cudaMemcpyHostToDevice, stream()), "upload");
  }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    if (dst.empty()) return;
    enter_unrecorded("download");
    // A copy to pageable memory blocks: what comes before it is waited for with a deadline.
    wait_for(stream(), Deadline::after(kCopyTimeout), "download");
    check(cudaMemcpyAsync(dst.data(), src, dst.size(), cudaMemcpyDeviceToHost, stream()),
          "download");
    wait_for(stream(), Deadline::after(kCopyTimeout), "download");
  }
  void synchronize(Deadline deadline) override {
    enter_unrecorded("synchronize");
    wait_for(stream(), deadline, "synchronize");
  }

  void mark(int index) override {
    enter_unrecorded("mark");
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
    enter_unrecorded("make_cache");
    auto cache = std::make_unique<CudaCache>(layout, this);
    if (choose_kernel(kManyHeads, layout, DType::kBF16, limits_.compute_capability) ==
        AttendKernel::kManyRows) {
      cache->make_map();
    }
    return cache;
  }
  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    check_weight(view);
    enter_unrecorded("make_weight");
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
    const auto [tasks, item_layer] = place(args.tasks, args.item_layer);
    make(AppendLaunch{.tasks = tasks.data,
                      .count = tasks.count,
                      .item_layer = item_layer.data,
                      .source = args.source,
                      .source_stride_bytes = args.source_stride_bytes,
                      .cache = own.data(),
                      .pages = own.layout().pages,
                      .row_bytes = own.layout().row_bytes()});
  }
  void attend(const Cache& cache, const AttendArgs& args) override {
    const CudaCache& own = own_cache(cache, this);
    check_attend(own.layout(), args);
    if (args.tasks.empty()) return;
    enter();
    AttendLaunch launch = describe_attend(args, own.layout(), limits_);
    launch.cache = own.data();
    launch.cache_map = own.map();
    if (fast_) {
      attend_fast(args, launch);
    } else {
      enqueue(launch, args, args.tasks, canonical_.schedule(args, launch.unit_rows, launch.parts));
    }
  }
  void merge(const MergeArgs& args) override {
    check_merge(args);
    if (args.ops.empty()) return;
    enter();
    merge(args.ops, args.shape, args.states, nullptr);
  }
  void gather(const GatherArgs& args) override {
    check_gather(args);
    if (args.index.empty()) return;
    enter();
    const auto [index] = place(args.index);
    make(GatherLaunch{.index = index.data,
                      .count = index.count,
                      .src = args.src,
                      .dst = args.dst,
                      .record_bytes = args.record_bytes});
  }

  void gemm(const GemmArgs& args) override {
    check_gemm(args);
    const auto* weight = dynamic_cast<const CudaWeight*>(args.weight);
    if (weight == nullptr || weight->owner() != this) {
      fail(ErrorCode::kInvalidArgument, "gemm: weight was not made by backend {}", name_);
    }
    if (args.tokens == 0) return;
    enter();
    if (recorder_ != nullptr) recorder_->keep(projection_.memory());
    make(GemmCall{weight, args, projection_.memory().get()});
  }
  void rms_norm(const RmsNormArgs& args) override {
    check_rms_norm(args);
    if (args.tokens == 0) return;
    enter();
    make(args);
  }
  void rope(const RopeArgs& args) override {
    check_rope(args);
    if (args.positions.empty()) return;
    enter();
    make(rope_launch(args));
  }
  void latent_rows(const LatentRowsArgs& args) override {
    check_latent_rows(args);
    if (args.rope.positions.empty()) return;
    enter();
    make(LatentRowsLaunch{args.norm, rope_launch(args.rope)});
  }
  void convert(const ConvertArgs& args) override {
    check_convert(args);
    if (args.rows == 0) return;
    enter();
    make(args);
  }
  void attend_dense(const DenseAttendArgs& args) override {
    check_dense(args);
    if (args.tokens == 0) return;
    enter();
    make(args);
  }

  [[nodiscard]] std::unique_ptr<Recording> record(const std::function<void()>& calls) override {
    if (!graphs_) return nullptr;
    enter();
    auto recording = std::make_unique<CudaRecording>(this, plan_memory_);
    Recorder measure(*recording, Recorder::Pass::kMeasure);
    pass(measure, calls);
    measure.end_measure();
    Recorder capture(*recording, Recorder::Pass::kCapture);
    recording->capture(stream(), [&] { pass(capture, calls); });
    if (!capture.fits()) fail(ErrorCode::kInternal, "record: the calls changed while recorded");
    staging_.send(capture.image(), recording->plan_data());
    return recording;
  }
  [[nodiscard]] bool refill(Recording& recording, const std::function<void()>& calls) override {
    (void)own_recording(recording);
    auto& own = dynamic_cast<CudaRecording&>(recording);
    enter();
    Recorder refill(own, Recorder::Pass::kRefill);
    pass(refill, calls);
    if (refill.fits()) staging_.send(refill.image(), own.plan_data());
    return refill.fits();
  }
  void replay(const Recording& recording) override {
    const CudaRecording& own = own_recording(recording);
    enter();
    own.replay(stream());
  }

 private:
  /// Any number of heads that the many-rows kernel takes where it takes some.
  static constexpr int kManyHeads = 128;

  void enter() const { use_device(device_.ordinal); }
  /// For what waits, allocates, or cannot be repeated.
  void enter_unrecorded(const char* call) const {
    if (recorder_ != nullptr) {
      fail(ErrorCode::kFailedPrecondition, "{} cannot be part of a recording", call);
    }
    enter();
  }

  [[nodiscard]] const CudaRecording& own_recording(const Recording& recording) const {
    const auto* own = dynamic_cast<const CudaRecording*>(&recording);
    if (own == nullptr || own->owner() != this) {
      fail(ErrorCode::kInvalidArgument, "recording was not made by backend {}", name_);
    }
    return *own;
  }
  void pass(Recorder& recorder, const std::function<void()>& calls) {
    if (recorder_ != nullptr) {
      fail(ErrorCode::kFailedPrecondition, "a recording cannot be made in another one");
    }
    recorder_ = &recorder;
    const Status status = status_of(calls);
    recorder_ = nullptr;
    status.throw_if_error();
  }

  /// Where plan data is, or in a recording will be, on the device.
  template <typename... T>
  [[nodiscard]] std::tuple<Placed<T>...> place(std::span<const T>... parts) {
    if (recorder_ != nullptr) return {recorder_->place(parts)...};
    return std::apply(
        [&](const T*... at) {
          return std::tuple<Placed<T>...>{Placed<T>{at, std::ssize(parts)}...};
        },
        staging_.upload(parts...));
  }
  void make(const Call& call) {
    if (recorder_ == nullptr || recorder_->take(call)) make_call(call, projection_, stream());
  }

  [[nodiscard]] RopeLaunch rope_launch(const RopeArgs& args) {
    const auto [positions, frequencies] = place(args.positions, args.frequencies);
    return describe_rope(args, positions.data, frequencies.data);
  }

  /// Sends the plan and launches.
  void enqueue(AttendLaunch& launch, const AttendArgs& args, std::span<const LeafTask> tasks,
               const AttendSchedule& schedule) {
    const auto [placed, part_begin, units, block_table, item_layer] =
        place(tasks, std::span<const std::int32_t>(schedule.part_begin),
              std::span<const WorkUnit>(schedule.units), args.block_table, args.item_layer);
    launch.tasks = placed.data;
    launch.part_begin = part_begin.data;
    launch.units = units.data;
    launch.block_table = block_table.data;
    launch.item_layer = item_layer.data;
    make(launch);
  }
  void merge(std::span<const MergeOp> ops, const StateShape& shape, float* states, float* scratch) {
    const auto [placed] = place(ops);
    make(MergeLaunch{.ops = placed.data,
                     .count = static_cast<int>(placed.count),
                     .heads = shape.heads,
                     .width = shape.width,
                     .states = states,
                     .scratch = scratch});
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
    if (recorder_ != nullptr) recorder_->keep(scratch_);
    launch.scratch = reinterpret_cast<float*>(scratch_.get());
    enqueue(launch, args, order.tasks, order.schedule);
    for (const std::vector<MergeOp>& ops : order.merges) {
      merge(ops, shape, args.states, launch.scratch);
    }
  }

  const CudaDevice device_;
  const DeviceLimits limits_;
  const bool fast_;
  const bool graphs_;
  const std::string name_;
  Stream stream_;
  Staging staging_;
  Projection projection_;
  RowCopies row_copies_;
  std::array<Event, kMarks> marks_;
  CanonicalOrder canonical_;
  std::shared_ptr<PlanMemory> plan_memory_ = std::make_shared<PlanMemory>();
  Recorder* recorder_ = nullptr;  // while calls are recorded
  // Of the fast order: grows with the largest plan; recordings hold what they name.
  std::shared_ptr<std::byte[]> scratch_;
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
