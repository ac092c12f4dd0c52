#include "tests/kernels/cuda/emulated_backend.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/error.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/few_rows.h"
#include "kernels/cuda/attend/generic.h"
#include "kernels/cuda/attend/merge.h"
#include "kernels/cuda/layer/convert.h"
#include "kernels/cuda/layer/copy_records.h"
#include "kernels/cuda/layer/dense.h"
#include "kernels/cuda/layer/rms_norm.h"
#include "kernels/cuda/layer/rope.h"
#include "kernels/host_memory.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/validate.h"
#include "tests/kernels/cuda/emulation/simt.h"

namespace tributary::test {
namespace {

/// An sm_80 with few multiprocessors: parts of the grid take several units.
constexpr cuda::DeviceLimits kDevice{
    .compute_capability = 80, .multiprocessors = 3, .shared_bytes = std::size_t{163} << 10};

template <int kRowTiles>
void few_rows(const cuda::AttendLaunch& launch) {
  using Kernel = cuda::FewRows<kRowTiles>;
  const int stages = cuda::few_rows_stages(kRowTiles, kDevice.shared_bytes);
  simt::run({.blocks = static_cast<unsigned>(launch.parts),
             .threads = Kernel::kThreads,
             .shared_bytes = cuda::few_rows_bytes(kRowTiles, stages)},
            [&] { Kernel(launch, stages).run(); });
}

template <typename Row, typename Query>
void generic(const cuda::AttendLaunch& launch) {
  using Kernel = cuda::Generic<Row, Query>;
  simt::run({.blocks = static_cast<unsigned>(launch.parts),
             .threads = Kernel::kThreads,
             .shared_bytes = Kernel::kSharedBytes},
            [&] { Kernel(launch).run(); });
}

void run_attend(const cuda::AttendLaunch& launch) {
  if (launch.kernel == cuda::AttendKernel::kFewRows) {
    switch (launch.unit_rows) {
      case 16:
        return few_rows<1>(launch);
      case 32:
        return few_rows<2>(launch);
      case 64:
        return few_rows<4>(launch);
      default:
        fail(ErrorCode::kInternal, "units of {} rows", launch.unit_rows);
    }
  }
  const bool halves = launch.query_dtype == DType::kBF16;
  if (launch.layout.row_dtype == DType::kBF16) {
    return halves ? generic<bf16, bf16>(launch) : generic<bf16, float>(launch);
  }
  return halves ? generic<float, bf16>(launch) : generic<float, float>(launch);
}

class EmulatedBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "cuda/emulated"; }
  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    return inner_->allocate(bytes);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override { inner_->upload(dst, src); }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    inner_->download(dst, src);
  }
  void synchronize(Deadline /*deadline*/) override {}

  [[nodiscard]] std::unique_ptr<Cache> make_cache(const CacheLayout& layout) override {
    check_layout(layout);
    return std::make_unique<HostCache>(layout, this);
  }
  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    return inner_->make_weight(view);
  }
  [[nodiscard]] std::span<std::byte> host_page(Cache& cache, int layer,
                                               std::int32_t page) override {
    check_page(own_cache(cache, this).layout(), "host_page", layer, page);
    return {};
  }
  void store_rows(Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                  std::span<const std::byte> rows) override {
    store_page_rows(own_cache(cache, this), layer, page, slot, rows);
  }
  void load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                 std::span<std::byte> rows) override {
    load_page_rows(own_cache(cache, this), layer, page, slot, rows);
  }

  void append(Cache& cache, const AppendArgs& args) override {
    const HostCache& own = own_cache(cache, this);
    check_append(own.layout(), args);
    if (args.tasks.empty()) return;
    const cuda::AppendLaunch launch{.tasks = args.tasks.data(),
                                    .count = std::ssize(args.tasks),
                                    .item_layer = args.item_layer.data(),
                                    .source = args.source,
                                    .source_stride_bytes = args.source_stride_bytes,
                                    .cache = own.layer_data(0),
                                    .pages = own.layout().pages,
                                    .row_bytes = own.layout().row_bytes()};
    simt::run({.blocks = static_cast<unsigned>(args.tasks.size()), .threads = cuda::kCopyThreads},
              [&] { cuda::append_block<unsigned char>(launch); });
  }
  void attend(const Cache& cache, const AttendArgs& args) override {
    const HostCache& own = own_cache(cache, this);
    check_attend(own.layout(), args);
    if (args.tasks.empty()) return;
    const cuda::AttendKernel kernel =
        cuda::choose_kernel(args.heads, own.layout(), args.query_dtype, kDevice.compute_capability);
    const int most_tokens = std::ranges::max_element(args.tasks, {}, &LeafTask::tokens)->tokens;
    const int rows = cuda::unit_rows(kernel, args.heads, most_tokens, kDevice);
    const int parts = cuda::attend_parts(kernel, rows, kDevice);
    const cuda::AttendSchedule schedule =
        cuda::schedule_attend(args.tasks, args.heads, rows, parts);
    cuda::AttendLaunch launch;
    launch.tasks = args.tasks.data();
    launch.part_begin = schedule.part_begin.data();
    launch.units = schedule.units.data();
    launch.block_table = args.block_table.data();
    launch.item_layer = args.item_layer.data();
    launch.cache = own.layer_data(0);
    launch.layout = own.layout();
    launch.queries = args.queries;
    launch.query_stride_bytes = args.query_stride_bytes;
    launch.query_dtype = args.query_dtype;
    launch.heads = args.heads;
    launch.softmax_scale = args.softmax_scale;
    launch.states = args.states;
    launch.unit_rows = rows;
    launch.parts = parts;
    launch.kernel = kernel;
    run_attend(launch);
  }
  void merge(const MergeArgs& args) override {
    check_merge(args);
    if (args.ops.empty()) return;
    const cuda::MergeLaunch launch{.ops = args.ops.data(),
                                   .heads = args.shape.heads,
                                   .width = args.shape.width,
                                   .states = args.states};
    const auto heads = static_cast<unsigned>(args.shape.heads);
    simt::run({.blocks = static_cast<unsigned>(args.ops.size()),
               .blocks_y = (heads + cuda::kMergeWarps - 1) / cuda::kMergeWarps,
               .threads = cuda::kMergeWarps * simt::kWarpLanes},
              [&] { cuda::merge_block(launch); });
  }
  void gather(const GatherArgs& args) override {
    check_gather(args);
    if (args.index.empty()) return;
    constexpr unsigned kShares = 2;
    const cuda::GatherLaunch launch{.index = args.index.data(),
                                    .count = std::ssize(args.index),
                                    .src = args.src,
                                    .dst = args.dst,
                                    .record_bytes = args.record_bytes};
    simt::run({.blocks = static_cast<unsigned>(args.index.size()),
               .blocks_y = kShares,
               .threads = cuda::kCopyThreads},
              [&] { cuda::gather_block<unsigned char>(launch, kShares); });
  }

  void gemm(const GemmArgs& args) override { inner_->gemm(args); }
  void rms_norm(const RmsNormArgs& args) override {
    check_rms_norm(args);
    if (args.tokens == 0) return;
    simt::run({.blocks = static_cast<unsigned>(args.tokens),
               .threads = cuda::kNormThreads,
               .shared_bytes = cuda::kNormSharedBytes},
              [&] { cuda::rms_norm_block(args); });
  }
  void rope(const RopeArgs& args) override {
    check_rope(args);
    if (args.positions.empty()) return;
    const cuda::RopeLaunch launch{.positions = args.positions.data(),
                                  .frequencies = args.frequencies.data(),
                                  .tokens = std::ssize(args.positions),
                                  .pairs = std::ssize(args.frequencies),
                                  .heads = args.heads,
                                  .x = args.x,
                                  .x_token_stride = args.x_token_stride,
                                  .x_head_stride = args.x_head_stride,
                                  .y = args.y,
                                  .y_token_stride = args.y_token_stride,
                                  .y_head_stride = args.y_head_stride};
    simt::run({.blocks = static_cast<unsigned>(args.positions.size()),
               .threads = cuda::kRopeThreads,
               .shared_bytes = cuda::kRopeSharedBytes},
              [&] { cuda::rope_block(launch); });
  }
  void convert(const ConvertArgs& args) override {
    check_convert(args);
    if (args.rows == 0) return;
    const bool from_float = args.src_dtype == DType::kF32;
    const bool to_float = args.dst_dtype == DType::kF32;
    simt::run({.blocks = static_cast<unsigned>(args.rows), .threads = cuda::kConvertThreads}, [&] {
      if (from_float) {
        to_float ? cuda::convert_block<float, float>(args, 1)
                 : cuda::convert_block<float, bf16>(args, 1);
      } else {
        to_float ? cuda::convert_block<bf16, float>(args, 1)
                 : cuda::convert_block<bf16, bf16>(args, 1);
      }
    });
  }
  void attend_dense(const DenseAttendArgs& args) override {
    check_dense(args);
    if (args.tokens == 0) return;
    simt::run({.blocks = static_cast<unsigned>(args.tokens),
               .blocks_y = static_cast<unsigned>(args.heads),
               .threads = cuda::kDenseThreads,
               .shared_bytes = cuda::kDenseSharedBytes},
              [&] { cuda::attend_dense_block(args); });
  }

 private:
  std::unique_ptr<Backend> inner_ = make_reference_backend();
};

}  // namespace

std::unique_ptr<Backend> make_emulated_backend() {
  return std::make_unique<EmulatedBackend>();
}

}  // namespace tributary::test
