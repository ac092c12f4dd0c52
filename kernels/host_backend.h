// The base of the backends whose device is the host: memory, caches and rows. A call has done its
// work when it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/base/error.h"
#include "core/interface/backend.h"
#include "kernels/host_memory.h"

namespace tributary {

class HostBackend : public Backend {
 public:
  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) final;
  void upload(std::byte* dst, std::span<const std::byte> src) final;
  void download(std::span<std::byte> dst, const std::byte* src) final;
  void synchronize(Deadline /*deadline*/) final {}
  [[nodiscard]] std::unique_ptr<Cache> make_cache(const CacheLayout& layout) final;
  [[nodiscard]] std::span<std::byte> host_page(Cache& cache, int layer, std::int32_t page) final;
  void store_rows(Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                  std::span<const std::byte> rows) final;
  void load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                 std::span<std::byte> rows) final;

 protected:
  /// `formats`: those of rows that the kernels read.
  explicit HostBackend(std::span<const RowFormat> formats) : formats_(formats) {}

  /// A cache whose memory nobody has touched yet.
  virtual void place(const HostCache& /*cache*/) {}

  /// The cache, checked to be one that this backend made. Throws kInvalidArgument for any other.
  [[nodiscard]] const HostCache& own(const Cache& cache) const;
  /// Likewise a weight, which is a `W`.
  template <typename W>
  [[nodiscard]] const W& own(const Weight* weight) const {
    const auto* found = dynamic_cast<const W*>(weight);
    if (found == nullptr) {
      fail(ErrorCode::kInvalidArgument, "gemm: weight was not made by backend {}", name());
    }
    return *found;
  }

  /// Copies a row, like memcpy.
  using CopyRow = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);
  /// Stores the rows of `args`, verbatim; `args` must be valid (core/interface/validate.h).
  void append_rows(const AppendArgs& args, CopyRow copy) const;

 private:
  std::span<const RowFormat> formats_;
};

}  // namespace tributary
