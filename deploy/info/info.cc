#include "deploy/info/info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/model/model_shape.h"
#include "deploy/runtime/backends.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary {

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
#ifdef TRIBUTARY_HAS_MPI
  fmt::format_to(out, "communicators     self, threads, mpi\n\n");
#else
  fmt::format_to(out, "communicators     self, threads (built without mpi)\n\n");
#endif
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
