// The backend for CPU cores, instruction set chosen once at run time: fp32 arithmetic on vectors,
// and tiles or BF16 dot products for decode attention where the machine has them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/interface/backend.h"
#include "kernels/host_memory.h"

namespace tributary {

struct CpuOptions {
  /// Threads that work on one call, the calling one included; 1 to 1024. They inherit the affinity
  /// of the thread that makes the backend. If that is exactly one CPU for each of several threads,
  /// they are pinned, and all of them take part in touching the memory of each cache first. The
  /// number does not change a bit of any result.
  int threads = 1;
  /// One of cpu_instruction_sets(); empty: the first of them.
  std::string instruction_set;
};

/// Instruction sets that this build holds and this machine has, for example {"AVX3_BF16",
/// "AVX3_BF16_FEW", "AVX3", "AVX2", "SSE4", "SSSE3", "SCALAR"} (AVX3 is AVX-512). The first is the
/// one that decodes best by a table of processors, without any measurement. The others follow by
/// their instructions, and the last one is portable. For bf16 queries over bf16 rows, AMX_BF16
/// (tiles) and AVX3_BF16 (dot products) round the weights of the values to bf16, AVX3_BF16_FEW with
/// up to 16 heads; everything else is computed as with AVX3.
[[nodiscard]] std::vector<std::string_view> cpu_instruction_sets();
/// The reason why the first of them is first: `GenuineIntel family 6 model 143: tiles, measured`.
[[nodiscard]] std::string cpu_instruction_set_reason();

/// The version of the headers that this was compiled with: `1.0.3`.
[[nodiscard]] std::string highway_version();

/// Name: `cpu/AVX3`. Every operation is our own code for that instruction set, so that equal names
/// mean equal bits whatever the machine, except that RoPE takes sin and cos from the C library.
/// Calls return when the work is done. Throws kInvalidArgument for a thread count out of range or
/// an instruction set that is not usable here, with the list of those that are.
[[nodiscard]] std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

/// A cache over rows that somebody else owns and that outlive it: attend() reads them in place.
/// `backend` comes from make_cpu_backend(). Throws kInvalidArgument for a layout or strides that it
/// cannot read, and for a backend of another kind.
[[nodiscard]] std::unique_ptr<const Cache> borrow_cpu_cache(const Backend& backend,
                                                            const CacheLayout& layout,
                                                            const BorrowedRows& rows);

}  // namespace tributary
