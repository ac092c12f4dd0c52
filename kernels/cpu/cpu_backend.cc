// Choice of the instruction set, validation, ownership; the work is in attention.cc, projection.cc.
#include "kernels/cpu/cpu_backend.h"

#include <fmt/ranges.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <variant>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/interface/validate.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_projection.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/stream_row.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_backend.h"

namespace tributary {
namespace {

constexpr int kMaxThreads = 1024;

/// The row formats that the kernels read (kernel_table.h), and that RowCopy copies for them.
constexpr std::array kRowFormats{RowFormat::kBF16, RowFormat::kF32, RowFormat::kFp8DsMla,
                                 RowFormat::kFp8};

const cpu::KernelTable& find_kernels(std::string_view name) {
  const auto tables = cpu::usable_kernel_tables();
  if (name.empty()) return *tables.front();
  const auto found = std::ranges::find(tables, name, &cpu::KernelTable::name);
  if (found == tables.end()) {
    fail(ErrorCode::kInvalidArgument, "instruction set {} is not usable here; usable are: {}", name,
         fmt::join(cpu_instruction_sets(), ", "));
  }
  return **found;
}

int checked_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads) {
    fail(ErrorCode::kInvalidArgument, "threads is {}, must be 1 to {}", threads, kMaxThreads);
  }
  return threads;
}

/// The system places memory near the thread that writes it first: with one thread, one memory
/// controller of a large machine would serve the whole cache. Units are claimed, so any thread
/// reads any page; the best possible is that every controller serves its share.
void spread_over_nodes(const HostCache& cache, cpu::ThreadPool& pool) {
  constexpr std::size_t kPage = 4096;
  const std::span<std::byte> memory(cache.layer_data(0), cache_bytes(cache.layout()));
  pool.for_each(ceil_div(memory.size(), kHugePage), [&](std::size_t unit, int /*thread*/) {
    const std::size_t end = std::min(memory.size(), (unit + 1) * kHugePage);
    for (std::size_t at = unit * kHugePage; at < end; at += kPage) memory[at] = std::byte{0};
  });
}

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(const cpu::KernelTable& kernels, int threads)
      : HostBackend(kRowFormats),
        kernels_(kernels),
        name_(fmt::format("cpu/{}", kernels_.name)),
        pool_(checked_threads(threads)),
        attention_(kernels_, pool_),
        projection_(kernels_, pool_) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    check_weight(view);
    return std::make_unique<cpu::PackedWeight>(view, pool_);
  }

 private:
  [[nodiscard]] bool do_call(const Call& call) override {
    return std::visit(
        [this](const auto& args) {
          if constexpr (requires { run(args); }) {
            run(args);
          } else if constexpr (requires { attention_.run(args); }) {
            attention_.run(args);
          } else if constexpr (requires { projection_.run(args); }) {
            projection_.run(args);
          } else {
            return false;
          }
          return true;
        },
        call);
  }
  void run(const AppendArgs& args) const {
    append_rows(args, cpu::stream_row);
    cpu::finish_rows();
  }
  void run(const AttendArgs& args) { attention_.attend(own(*args.cache), args); }
  void run(const GemmArgs& args) { projection_.gemm(own<cpu::PackedWeight>(args.weight), args); }
  void place(const HostCache& cache) override {
    if (!pool_.cpus().empty()) spread_over_nodes(cache, pool_);
  }

  const cpu::KernelTable& kernels_;
  const std::string name_;
  cpu::ThreadPool pool_;
  cpu::Attention attention_;
  cpu::Projection projection_;
};

}  // namespace

std::vector<std::string_view> cpu_instruction_sets() {
  std::vector<std::string_view> names;
  for (const cpu::KernelTable* table : cpu::usable_kernel_tables()) names.push_back(table->name);
  return names;
}

std::string cpu_instruction_set_reason() {
  return cpu::kernel_table_reason();
}

std::string highway_version() {
  return fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH);
}

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<CpuBackend>(find_kernels(options.instruction_set), options.threads);
}

std::unique_ptr<const Cache> borrow_cpu_cache(const Backend& backend, const CacheLayout& layout,
                                              const BorrowedRows& rows) {
  if (dynamic_cast<const CpuBackend*>(&backend) == nullptr) {
    fail(ErrorCode::kInvalidArgument, "borrowed rows: backend {} is none of the CPU's",
         backend.name());
  }
  check_layout(layout, backend.name(), kRowFormats);
  return HostCache::over(layout, &backend, rows);
}

std::unique_ptr<Backend> cpu::make_table_backend(const KernelTable& table, int threads) {
  return std::make_unique<CpuBackend>(table, threads);
}

}  // namespace tributary
