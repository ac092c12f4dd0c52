// The launches of attend/attend.cu, on emulated threads.
#include <algorithm>

#include "kernels/cuda/attend/attend_launch.h"
#include "kernels/cuda/attend/dispatch.h"
#include "kernels/cuda/attend/few_rows.h"
#include "kernels/cuda/attend/generic.h"
#include "kernels/cuda/attend/merge.h"
#include "tests/kernels/cuda/runtime/launch.h"

namespace tributary::test::device {

bool launchable(const Device& device, const simt::Launch& grid) {
  constexpr unsigned kMostThreads = 1024;
  constexpr unsigned kMostBlocksY = 65535;
  return grid.blocks > 0 && grid.blocks < 1U << 31 && grid.blocks_y > 0 &&
         grid.blocks_y <= kMostBlocksY && grid.threads > 0 && grid.threads <= kMostThreads &&
         grid.shared_bytes <= most_shared_bytes(device);
}

cudaError_t load_kernel(const char* name) {
  return call("cudaFuncGetAttributes", [name](Device& device, Lock&) {
    device.loaded.insert(name);
    return cudaSuccess;
  });
}

void count_launch(Device& device, const char* name) {
  ++device.counters.launches;
  if (device.loaded.insert(name).second) ++device.counters.lazy_loads;
}

void check_memory(const cuda::AttendLaunch& launch) {
  const CacheLayout& layout = launch.layout;
  const auto parts = static_cast<std::size_t>(launch.parts);
  require_device_memory(launch.part_begin, (parts + 1) * sizeof(std::int32_t), "attend: parts");
  const auto units = static_cast<std::size_t>(launch.part_begin[parts]);
  require_device_memory(launch.units, units * sizeof(cuda::WorkUnit), "attend: units");
  std::size_t tasks = 0;
  for (std::size_t i = 0; i < units; ++i) {
    tasks = std::max(tasks, static_cast<std::size_t>(launch.units[i].task) + 1);
  }
  require_device_memory(launch.tasks, tasks * sizeof(LeafTask), "attend: tasks");
  require_device_memory(launch.cache,
                        static_cast<std::size_t>(layout.layers) *
                            static_cast<std::size_t>(layout.pages) * kPageTokens *
                            layout.row_bytes(),
                        "attend: the cache");
  if (units == 0) return;
  if (launch.task_trees != nullptr) {
    require_device_memory(launch.task_trees, tasks * sizeof(std::int32_t),
                          "attend: trees of tasks");
    const std::int32_t trees = *std::max_element(launch.task_trees, launch.task_trees + tasks) + 1;
    require_device_memory(launch.trees, static_cast<std::size_t>(trees) * sizeof(cuda::MergeTree),
                          "attend: trees");
  }
  require_device_memory(launch.block_table, sizeof(std::int32_t), "attend: the block table");
  require_device_memory(launch.item_layer, sizeof(std::int32_t), "attend: layers of items");
  const auto heads = static_cast<std::size_t>(launch.heads);
  const std::size_t record = StateShape{launch.heads, layout.kv_lora_rank}.record_bytes();
  const std::size_t query =
      heads * static_cast<std::size_t>(layout.latent_dim()) * dtype_bytes(launch.query_dtype);
  for (std::size_t t = 0; t < tasks; ++t) {
    const LeafTask& task = launch.tasks[t];
    if (launch.selected.most != 0) {
      require_device_memory(reinterpret_cast<const std::byte*>(launch.selected.data) +
                                static_cast<std::size_t>(task.query) * launch.selected.stride_bytes,
                            static_cast<std::size_t>(launch.selected.most) * sizeof(std::int32_t),
                            "attend: a list of rows");
    }
    for (int token = 0; token < task.tokens; ++token) {
      require_device_memory(
          launch.queries + static_cast<std::size_t>(task.query + token) * launch.query_stride_bytes,
          query, "attend: a query");
      const std::int64_t state = task.state + token;
      const float* const states = state < cuda::kScratchRecord ? launch.states : launch.scratch;
      const auto at = static_cast<std::size_t>(state % cuda::kScratchRecord);
      require_device_memory(reinterpret_cast<const std::byte*>(states) + at * record, record,
                            "attend: a state");
    }
  }
}

}  // namespace tributary::test::device

namespace tributary::cuda {

using test::device::require_device_memory;

namespace {

template <int kRowTiles, bool kSelected, bool kCodes>
cudaError_t launch_few(const AttendLaunch& launch, cudaStream_t stream) {
  using Kernel = FewRows<kRowTiles, kSelected, kCodes>;
  return test::device::launch(
      "attend, few rows",
      {.blocks = static_cast<unsigned>(launch.parts),
       .threads = Kernel::kThreads,
       .shared_bytes = few_rows_bytes(kRowTiles, launch.stages)},
      stream, [launch] { test::device::check_memory(launch); }, [launch] { Kernel(launch).run(); });
}

template <typename RowElement, typename QueryElement>
cudaError_t launch_plain(const AttendLaunch& launch, cudaStream_t stream) {
  using Kernel = Generic<RowElement, QueryElement>;
  return test::device::launch(
      "attend, generic",
      {.blocks = static_cast<unsigned>(launch.parts),
       .threads = Kernel::kThreads,
       .shared_bytes = Kernel::kSharedBytes},
      stream, [launch] { test::device::check_memory(launch); },
      [launch] {
        launch.selected.most == 0 ? Kernel(launch).run()
                                  : Generic<RowElement, QueryElement, true>(launch).run();
      });
}

void check_memory(const MergeLaunch& launch) {
  require_device_memory(launch.trees, static_cast<std::size_t>(launch.count) * sizeof(MergeTree),
                        "merge: trees");
  const std::size_t record = StateShape{launch.heads, launch.width}.record_bytes();
  for (int i = 0; i < launch.count; ++i) {
    const MergeTree& tree = launch.trees[i];
    const auto check_state = [&](std::int64_t first) {
      if (first == kNoState || tree.tokens == 0) return;
      const float* const states = first < kScratchRecord ? launch.states : launch.scratch;
      const auto at = static_cast<std::size_t>(first % kScratchRecord);
      require_device_memory(reinterpret_cast<const std::byte*>(states) + at * record,
                            static_cast<std::size_t>(tree.tokens) * record, "merge: a state");
    };
    check_state(tree.dst);
    for (const std::int64_t input :
         std::span(tree.inputs).first(static_cast<std::size_t>(tree.slots))) {
      check_state(input);
    }
  }
}

}  // namespace

cudaError_t load_attend_kernels() {
  for (const char* name : {"attend, few rows", "attend, generic"}) {
    if (const cudaError_t code = test::device::load_kernel(name); code != cudaSuccess) return code;
  }
  return test::device::load_kernel("merge");
}

cudaError_t launch_few_rows(const AttendLaunch& launch, cudaStream_t stream) {
  return with_few_rows(launch, cudaErrorInvalidValue, [&](auto tiles, auto selected, auto codes) {
    return launch_few<tiles(), selected(), codes()>(launch, stream);
  });
}

cudaError_t launch_generic(const AttendLaunch& launch, cudaStream_t stream) {
  return with_elements(launch.layout.row_format, launch.query_dtype, [&](auto row, auto query) {
    return launch_plain<decltype(row), decltype(query)>(launch, stream);
  });
}

cudaError_t launch_merge(const MergeLaunch& launch, cudaStream_t stream) {
  const auto heads = static_cast<unsigned>(launch.heads);
  return test::device::launch(
      "merge",
      {.blocks = static_cast<unsigned>(launch.count),
       .blocks_y = (heads + kMergeWarps - 1) / kMergeWarps,
       .threads = kMergeWarps * simt::kWarpLanes},
      stream, [launch] { check_memory(launch); }, [launch] { merge_block(launch); });
}

}  // namespace tributary::cuda
