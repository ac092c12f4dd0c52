// Owns memory and the streams, and turns each call into launches of kernels.
#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/interface/validate.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/codes.h"
#include "kernels/cuda/attend/fast_order.h"
#include "kernels/cuda/attend/fused_order.h"
#include "kernels/cuda/attend/token_tasks.h"
#include "kernels/cuda/base/support.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/cuda_projection.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/recording.h"
#include "kernels/cuda/row_copies.h"
#include "kernels/cuda/staging.h"

namespace tributary {
namespace {

using namespace cuda;  // NOLINT(google-build-using-namespace): the folder's own

/// The row formats that the kernels read.
constexpr std::array kRowFormats{RowFormat::kBF16, RowFormat::kF32, RowFormat::kFp8DsMla,
                                 RowFormat::kFp8};

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "asking for a device's properties");
  return value;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : device_(open_cuda_device(options.device)),
        limits_{.compute_capability = device_.compute_capability,
                .multiprocessors = attribute(cudaDevAttrMultiProcessorCount, options.device),
                .shared_bytes = static_cast<std::size_t>(
                    attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, options.device))},
        fast_(options.fast_merge_order),
        choice_(options.attend_kernel),
        graphs_(options.graphs),
        name_(fmt::format("cuda/{}/sm_{}/cublaslt-{}{}{}", device_.name, device_.compute_capability,
                          cublaslt_version(), fast_ ? "/fast" : "",
                          choice_ == AttendChoice::kAuto
                              ? ""
                              : fmt::format("/attend-{}", attend_choice_name(choice_)))),
        stream_(make_stream()),
        staging_(stream()) {
    if (cublaslt_problem().empty()) projection_.emplace(stream());
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
    enter();
    return std::make_unique<CudaBuffer>(allocate_device(bytes, "a buffer"), bytes);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override {
    if (src.empty()) return;
    enter();
    // From pageable memory this returns after `src` was copied into the driver's memory.
    check(cudaMemcpyAsync(dst, src.data(), src.size(), cudaMemcpyHostToDevice, stream()), "upload");
  }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    if (dst.empty()) return;
    enter();
    // A copy to pageable memory blocks, so earlier work is waited for with a deadline first.
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
    check_layout(layout, name(), kRowFormats);
    enter();
    auto cache = std::make_unique<CudaCache>(layout, this);
    if (!holds_codes(layout.row_format) &&
        choose_kernel(kManyHeads, layout, DType::kBF16, limits_.compute_capability, choice_) ==
            AttendKernel::kManyRows) {
      cache->make_map();
    }
    return cache;
  }
  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    check_weight(view);
    if (!projection_) {
      fail(ErrorCode::kUnsupported, "weight: backend {} has no products: {}", name_,
           cublaslt_problem());
    }
    enter();
    return projection_->make_weight(view, this);
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

  void replay(const Recording& recording) override {
    const CudaRecording& own = own_recording(recording);
    enter();
    own.replay(stream());
  }

 private:
  [[nodiscard]] bool do_call(const Call& call) override {
    enter();
    std::visit([this](const auto& args) { lower(args); }, call);
    return true;
  }
  [[nodiscard]] std::unique_ptr<Recording> do_record(std::span<const Call> calls) override {
    if (!graphs_) return nullptr;
    enter();
    auto recording = std::make_unique<CudaRecording>(this, plan_memory_);
    Recorder measure(*recording, Recorder::Pass::kMeasure, plan_image_);
    pass(measure, calls);
    measure.end_measure();
    Recorder capture(*recording, Recorder::Pass::kCapture, plan_image_);
    recording->capture(stream(), [&] { pass(capture, calls); });
    if (!capture.fits()) fail(ErrorCode::kInternal, "record: the calls changed while recorded");
    staging_.send(capture.image(), recording->plan_data());
    return recording;
  }
  [[nodiscard]] bool do_refill(Recording& recording, std::span<const Call> calls) override {
    (void)own_recording(recording);
    auto& own = dynamic_cast<CudaRecording&>(recording);
    enter();
    Recorder refill(own, Recorder::Pass::kRefill, plan_image_);
    pass(refill, calls);
    if (refill.fits()) staging_.send(refill.image(), own.plan_data());
    return refill.fits();
  }

  // The functions below turn calls into launches.

  void lower(const AppendArgs& args) {
    const CudaCache& own = own_cache(*args.cache, this);
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
  void lower(const AttendArgs& args) { attend(args, {}); }
  void lower(const AttendMergeArgs& args) {
    if (args.attend.empty()) return lower(args.merge);
    attend(args.attend, args.merge);
  }
  void lower(const MergeArgs& args) {
    merge(merge_plans_.trees(args.ops, args.levels), args.shape, args.states, nullptr);
  }
  void lower(const GatherArgs& args) {
    const auto [index] = place(args.index);
    make(GatherLaunch{.index = index.data,
                      .count = index.count,
                      .src = args.src,
                      .dst = args.dst,
                      .record_bytes = args.record_bytes});
  }
  void lower(const GemmArgs& args) {
    const auto* weight = dynamic_cast<const CudaWeight*>(args.weight);
    if (weight == nullptr || weight->owner() != this) {
      fail(ErrorCode::kInvalidArgument, "gemm: weight was not made by backend {}", name_);
    }
    // A weight of this backend exists, and so does the projection that made it.
    if (recorder_ != nullptr) recorder_->keep(projection_->memory());
    make(GemmLaunch{weight, args, projection_->memory().get()});
  }
  void lower(const RmsNormArgs& args) { make(args); }
  void lower(const RopeArgs& args) { make(rope_launch(args)); }
  void lower(const LatentRowsArgs& args) {
    make(LatentRowsLaunch{args.norm, rope_launch(args.rope)});
  }
  void lower(const ConvertArgs& args) {
    check_row_format(args.src_row.format, name(), kRowFormats);
    check_row_format(args.dst_row.format, name(), kRowFormats);
    make(args);
  }
  void lower(const DenseAttendArgs& args) { make(args); }

  /// Some number of heads that the many-rows kernel supports, if it supports any.
  static constexpr int kManyHeads = 128;

  void enter() const { use_device(device_.ordinal); }

  [[nodiscard]] const CudaRecording& own_recording(const Recording& recording) const {
    const auto* own = dynamic_cast<const CudaRecording*>(&recording);
    if (own == nullptr || own->owner() != this) {
      fail(ErrorCode::kInvalidArgument, "recording was not made by backend {}", name_);
    }
    return *own;
  }
  void pass(Recorder& recorder, std::span<const Call> calls) {
    recorder_ = &recorder;
    const Status status = status_of([&] {
      for (const Call& call : calls) hand_on(call);
    });
    recorder_ = nullptr;
    status.throw_if_error();
  }

  /// The address of plan data on the device, now or in a recording.
  template <typename... T>
  [[nodiscard]] std::tuple<Placed<T>...> place(std::span<const T>... parts) {
    if (recorder_ != nullptr) return {recorder_->place(parts)...};
    return std::apply(
        [&](const T*... at) {
          return std::tuple<Placed<T>...>{Placed<T>{at, std::ssize(parts)}...};
        },
        staging_.upload(parts...));
  }
  void make(const Launch& launch) {
    if (recorder_ == nullptr || recorder_->take(launch)) {
      make_launch(launch, projection_ ? &*projection_ : nullptr, stream());
    }
  }

  [[nodiscard]] RopeLaunch rope_launch(const RopeArgs& args) {
    const auto [positions, frequencies] = place(args.positions, args.frequencies);
    return describe_rope(args, positions.data, frequencies.data);
  }

  /// Sends the plan and launches.
  void enqueue(AttendLaunch& launch, const AttendArgs& args, std::span<const LeafTask> tasks,
               const AttendSchedule& schedule, std::span<const std::int32_t> task_trees = {},
               std::span<const MergeTree> trees = {}) {
    const auto [placed, part_begin, units, block_table, item_layer, tree_of, placed_trees] =
        place(tasks, std::span<const std::int32_t>(schedule.part_begin),
              std::span<const WorkUnit>(schedule.units), args.block_table, args.item_layer,
              task_trees, trees);
    launch.task_trees = task_trees.empty() ? nullptr : tree_of.data;
    launch.trees = task_trees.empty() ? nullptr : placed_trees.data;
    launch.tasks = placed.data;
    launch.part_begin = part_begin.data;
    launch.units = units.data;
    launch.block_table = block_table.data;
    launch.item_layer = item_layer.data;
    make(launch);
  }
  void merge(const std::vector<std::vector<MergeTree>>& launches, const StateShape& shape,
             float* states, float* scratch) {
    for (const std::vector<MergeTree>& trees : launches) {
      const auto [placed] = place(std::span(trees));
      make(MergeLaunch{.trees = placed.data,
                       .count = static_cast<int>(placed.count),
                       .heads = shape.heads,
                       .width = shape.width,
                       .states = states,
                       .scratch = scratch});
    }
  }

  void attend(const AttendArgs& args, const MergeArgs& merges) {
    if (args.selected.most == 0) return attend(args, merges, args.tasks);
    split_into_tokens(args, merges.ops, token_tasks_);
    AttendArgs of_tokens = args;
    of_tokens.tasks = token_tasks_.tasks;
    MergeArgs merges_of_tokens = merges;
    merges_of_tokens.ops = token_tasks_.merges;
    attend(of_tokens, merges_of_tokens, token_tasks_.expected);
  }
  /// `expected`: the tasks as the schedule takes them.
  void attend(const AttendArgs& args, const MergeArgs& merges, PlanData<LeafTask> expected) {
    const CudaCache& own = own_cache(*args.cache, this);
    AttendLaunch launch = describe_attend(args, own.layout(), limits_, choice_, fast_);
    launch.cache = own.data();
    launch.cache_map = own.map();
    if (fast_) attend_fast(args, launch);
    const bool fused = !fast_ && !merges.empty() && merges_leaves(launch.kernel, launch.unit_rows);
    if (!fast_) {
      AttendArgs scheduled = args;
      scheduled.tasks = expected;
      const FusedOrder& order =
          fused_.order(scheduled, fused ? merges : MergeArgs{}, launch.unit_rows, launch.parts);
      enqueue(launch, args, args.tasks, order.schedule, order.task_trees, order.trees);
      if (fused) merge(order.rest, merges.shape, merges.states, nullptr);
    }
    if (!fused && !merges.empty()) lower(merges);
    // A plan without such merges fits a recording with them: otherwise alternating plans would all
    // be recorded anew.
    while (fused && recorder_ != nullptr && recorder_->expects<MergeLaunch>()) {
      merge({{}}, merges.shape, merges.states, nullptr);
    }
  }
  /// Launches the pieces and their merges.
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
    merge(merge_trees(order.merges, order.merge_levels), shape, args.states, launch.scratch);
  }

  const CudaDevice device_;
  const DeviceLimits limits_;
  const bool fast_;
  const AttendChoice choice_;
  const bool graphs_;
  const std::string name_;
  Stream stream_;
  Staging staging_;
  std::optional<Projection> projection_;  // where there is cuBLASLt
  RowCopies row_copies_;
  std::array<Event, kMarks> marks_;
  TokenTasks token_tasks_;
  FusedPlan fused_;
  MergePlans merge_plans_;
  std::shared_ptr<PlanMemory> plan_memory_ = std::make_shared<PlanMemory>();
  Recorder* recorder_ = nullptr;       // while calls are recorded
  std::vector<std::byte> plan_image_;  // of the recorder
  // For the fast order. Grows with the largest plan; recordings keep the memory that they use.
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
