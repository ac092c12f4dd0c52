#include "deploy/info/info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/model/model_shape.h"
#include "deploy/runtime/backends.h"
#include "kernels/cpu/cpu_backend.h"
#ifdef TRIBUTARY_HAS_CUDA
#include "kernels/cuda/cuda_devices.h"
#endif
#ifdef TRIBUTARY_HAS_NCCL
#include "comm/nccl/nccl_library.h"
#endif

namespace tributary {

namespace {

#ifdef TRIBUTARY_HAS_CUDA
/// The devices, or what is missing.
std::string cuda_text() {
  const CudaStatus status = cuda_status();
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{}, built with {}",
                 status.driver_version == 0
                     ? "no driver"
                     : "driver for " + cuda_version_text(status.driver_version),
                 cuda_version_text(status.runtime_version));
  if (!status.problem.empty()) return text + "; unusable: " + status.problem;
  for (const CudaDevice& device : status.devices) {
    fmt::format_to(out, "\n{:18}cuda/{}: {}, sm_{}, {} MiB", "", device.ordinal, device.name,
                   device.compute_capability, device.memory_bytes >> 20);
  }
  return text;
}
#else
std::string cuda_text() {
  return "not in this build";
}
#endif

#ifdef TRIBUTARY_HAS_NCCL
std::string nccl_text() {
  const NcclStatus status = nccl_status();
  return status.problem.empty() ? status.version : "unusable: " + status.problem;
}
#else
std::string nccl_text() {
  return "not in this build";
}
#endif

}  // namespace

std::string_view version() noexcept {
  return TRIBUTARY_VERSION;
}

std::string info_text() {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "tributary {}\n\n", version());
  fmt::format_to(out, "instruction sets  {} (the first is used)\n",
                 fmt::join(cpu_instruction_sets(), ", "));
  fmt::format_to(out, "backends          {}\n", fmt::join(backend_names(), ", "));
  fmt::format_to(out, "cuda              {}\n", cuda_text());
#ifdef TRIBUTARY_HAS_MPI
  fmt::format_to(out, "communicators     self, threads, mpi\n");
#else
  fmt::format_to(out, "communicators     self, threads (built without mpi)\n");
#endif
  fmt::format_to(out, "nccl              {}\n\n", nccl_text());
  constexpr auto kRow = "{:<16}  {:>6}  {:>5}  {:>7}  {:>8}  {:>17}  {:>11}\n";
  fmt::format_to(out, "Model shapes, with the bytes that a token takes in the cache as bf16:\n\n");
  fmt::format_to(out, kRow, "shape", "layers", "heads", "kv rank", "rope dim", "bytes/token/layer",
                 "bytes/token");
  for (const ModelShape& shape : model_presets()) {
    const int row_bytes = 2 * shape.latent_dim();
    fmt::format_to(out, kRow, shape.name, shape.num_hidden_layers, shape.num_attention_heads,
                   shape.kv_lora_rank, shape.qk_rope_head_dim, row_bytes,
                   row_bytes * shape.num_hidden_layers);
  }
  return text;
}

}  // namespace tributary
