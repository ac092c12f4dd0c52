// The attention backends of this build, by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/interface/backend.h"
#include "kernels/cuda/attend/attend_choice.h"

namespace tributary {

/// The names that make_backend accepts, preferred first: `cpu` (the best instruction set here),
/// `cpu/NAME` for each instruction set usable here, `cuda` (the first device) and `cuda/N` for each
/// device if there are any, `reference`.
[[nodiscard]] std::vector<std::string> backend_names();

/// The device of `cuda` or `cuda/N`. Throws kInvalidArgument.
[[nodiscard]] int cuda_ordinal(std::string_view name);

/// The pieces over which partial states are computed and merged. `canonical`: leaves of fixed size
/// and a fixed tree, so that results are the same bits for any batch and number of workers. `fast`:
/// pieces of any number of pages, balanced over the device; the last bits depend on the batch.
enum class MergeOrder { kCanonical, kFast };

/// `canonical`, `fast`; throws kInvalidArgument with the list.
[[nodiscard]] MergeOrder parse_merge_order(std::string_view name);
[[nodiscard]] std::string_view merge_order_name(MergeOrder order) noexcept;

/// The choices of a command besides a backend's name.
struct BackendOptions {
  MergeOrder merge_order = MergeOrder::kCanonical;
  bool disable_cuda_graph = false;  // the bits are the same
  AttendChoice attend_kernel = AttendChoice::kAuto;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    v(merge_order, "--merge-order", "canonical|fast",
      "Of partial results: the same bits whatever the batch and the workers, or, with cuda, as a "
      "device is busiest");
    v(disable_cuda_graph, "--disable-cuda-graph",
      "With cuda, launch all kernels one by one, none as part of a CUDA graph");
    v(attend_kernel, "--attend-kernel", "auto|generic|few|many1|many2",
      "With cuda, the kernel of attention: by the shape, or this one, while another is broken or "
      "for a measurement",
      {.environment = "TRIBUTARY_ATTEND_KERNEL"});
  }
};

/// `threads`: compute threads of the backend, >= 1. Throws kInvalidArgument with the list of names,
/// or for a fast merge order or an attend kernel of another backend than `cuda`; kUnsupported for
/// `cuda` if it cannot run, with the missing part.
[[nodiscard]] std::unique_ptr<Backend> make_backend(std::string_view name, int threads,
                                                    const BackendOptions& options = {});

}  // namespace tributary
