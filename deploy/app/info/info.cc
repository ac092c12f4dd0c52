#include "deploy/app/info/info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gnu/libc-version.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "comm/http/http_libraries.h"
#include "core/model/mla_shape.h"
#include "core/model/row_format.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/transport/data_transport.h"
#include "deploy/service/transport/transport_choice.h"
#include "kernels/cpu/cpu_backend.h"
#ifdef TRIBUTARY_HAS_CUDA
#include "kernels/cuda/cuda_devices.h"
#endif
#ifdef TRIBUTARY_HAS_MPI
#include "comm/mpi/mpi_environment.h"
#endif
#ifdef TRIBUTARY_HAS_NCCL
#include "comm/nccl/nccl_library.h"
#endif

namespace tributary {

namespace {

#ifdef __clang__
constexpr std::string_view kCompiler = __VERSION__;  // it names itself
#else
constexpr std::string_view kCompiler = "g++ " __VERSION__;
#endif

#ifdef TRIBUTARY_HAS_CUDA
/// The devices, or the missing part.
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
  if (!status.products_problem.empty()) {
    fmt::format_to(out, "; attention alone, no products: {}", status.products_problem);
  }
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

#ifdef TRIBUTARY_HAS_MPI
constexpr std::array<std::string_view, 3> kCommunicators{"self", "threads", "mpi"};
#else
constexpr std::array<std::string_view, 2> kCommunicators{"self", "threads"};
#endif

ChosenTransport own_transport() {
  const std::string ports = rdma_ports();
  return choose_transport({}, std::span(&ports, 1));
}

std::size_t bf16_row_bytes(const MlaShape& shape) {
  return RowLayout{RowFormat::kBF16, shape.kv_lora_rank, shape.qk_rope_head_dim}.bytes();
}

}  // namespace

std::string_view version() noexcept {
  return TRIBUTARY_VERSION;
}

std::string_view build_type() noexcept {
  return TRIBUTARY_BUILD_TYPE;
}

std::string build_text() {
  return fmt::format("{} (commit {}, {})", version(), build_commit(), build_type());
}

std::string info_text() {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "tributary {}\n\n", build_text());
  fmt::format_to(out, "instruction sets  {} (the first is used)\n",
                 fmt::join(cpu_instruction_sets(), ", "));
  fmt::format_to(out, "processor         {}\n", cpu_instruction_set_reason());
  fmt::format_to(out, "backends          {}\n", fmt::join(backend_names(), ", "));
  fmt::format_to(out, "cuda              {}\n", cuda_text());
#ifdef TRIBUTARY_HAS_MPI
  fmt::format_to(out, "communicators     {}\n", fmt::join(kCommunicators, ", "));
  fmt::format_to(out, "mpi               {}\n", mpi_library_version());
#else
  fmt::format_to(out, "communicators     self, threads (built without mpi)\n");
#endif
  fmt::format_to(out, "nccl              {}\n", nccl_text());
  fmt::format_to(out, "ucx               {}\n", ucx_text());
  const ChosenTransport transport = own_transport();
  fmt::format_to(out, "data plane        {} ({})\n", transport.scheme, transport.reason);
  fmt::format_to(out, "libraries         OpenSSL {}, glibc {}\n", openssl_version(),
                 gnu_get_libc_version());
  fmt::format_to(out, "built with        {}, Boost {}, Highway {}\n\n", kCompiler, boost_version(),
                 highway_version());
  constexpr auto kRow = "{:<16}  {:>6}  {:>5}  {:>7}  {:>8}  {:>5}  {:>8}  {:>17}  {:>11}\n";
  fmt::format_to(out, "Model shapes, with the bytes that a token takes in the cache as bf16:\n\n");
  fmt::format_to(out, kRow, "shape", "layers", "heads", "kv rank", "rope dim", "topk", "scale",
                 "bytes/token/layer", "bytes/token");
  for (const MlaShape& shape : mla_presets()) {
    const std::size_t row_bytes = bf16_row_bytes(shape);
    fmt::format_to(out, kRow, shape.name, shape.layers, shape.heads, shape.kv_lora_rank,
                   shape.qk_rope_head_dim, shape.topk > 0 ? std::to_string(shape.topk) : "all",
                   fmt::format("{:.6f}", shape.softmax_scale), row_bytes,
                   row_bytes * static_cast<std::size_t>(shape.layers));
  }
  return text;
}

std::string info_json() {
  const ChosenTransport transport = own_transport();
  nlohmann::ordered_json json{{"version", version()},
                              {"commit", build_commit()},
                              {"build_type", build_type()},
                              {"compiler", kCompiler},
                              {"instruction_sets", cpu_instruction_sets()},
                              {"processor", cpu_instruction_set_reason()},
                              {"backends", backend_names()},
                              {"communicators", kCommunicators},
                              {"cuda", cuda_text()},
                              {"nccl", nccl_text()},
                              {"ucx", ucx_text()},
                              {"data_plane", transport.scheme},
                              {"data_plane_reason", transport.reason},
                              {"openssl", openssl_version()},
                              {"boost", boost_version()},
                              {"highway", highway_version()},
                              {"glibc", gnu_get_libc_version()},
                              {"shapes", nlohmann::ordered_json::array()}};
#ifdef TRIBUTARY_HAS_MPI
  json["mpi"] = mpi_library_version();
#endif
  for (const MlaShape& shape : mla_presets()) {
    json["shapes"].push_back({{"name", shape.name},
                              {"layers", shape.layers},
                              {"heads", shape.heads},
                              {"kv_lora_rank", shape.kv_lora_rank},
                              {"qk_rope_head_dim", shape.qk_rope_head_dim},
                              {"topk", shape.topk},
                              {"softmax_scale", shape.softmax_scale},
                              {"bytes_per_token_and_layer", bf16_row_bytes(shape)}});
  }
  return json.dump(2);
}

}  // namespace tributary
