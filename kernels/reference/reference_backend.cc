// Memory and wiring of the reference backend; the arithmetic is in reference_attention.cc and
// reference_projection.cc.
#include "kernels/reference/reference_backend.h"

#include <cstring>

#include "core/base/error.h"
#include "kernels/host_memory.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/validate.h"

namespace tributary {
namespace {

class ReferenceBackend final : public Backend {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }

  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    return make_host_buffer(bytes);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override {
    if (!src.empty()) std::memcpy(dst, src.data(), src.size());
  }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    if (!dst.empty()) std::memcpy(dst.data(), src, dst.size());
  }
  // Every call has done its work when it returns.
  void synchronize(Deadline /*deadline*/) override {}

  [[nodiscard]] std::unique_ptr<Cache> make_cache(const CacheLayout& layout) override {
    check_layout(layout);
    return std::make_unique<HostCache>(layout, this);
  }
  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    check_weight(view);
    return std::make_unique<reference::DenseWeight>(view);
  }

  [[nodiscard]] std::span<std::byte> host_page(Cache& cache, int layer,
                                               std::int32_t page) override {
    return page_rows(own_cache(cache, this), layer, page);
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
    append_rows(own, args);
  }
  void attend(const Cache& cache, const AttendArgs& args) override {
    const HostCache& own = own_cache(cache, this);
    check_attend(own.layout(), args);
    reference::attend(own, args);
  }
  void merge(const MergeArgs& args) override {
    check_merge(args);
    reference::merge(args);
  }
  void gather(const GatherArgs& args) override {
    check_gather(args);
    for (std::size_t i = 0; i < args.index.size(); ++i) {
      std::memcpy(args.dst + i * args.record_bytes,
                  args.src + static_cast<std::size_t>(args.index[i]) * args.record_bytes,
                  args.record_bytes);
    }
  }
  void gemm(const GemmArgs& args) override {
    check_gemm(args);
    const auto* weight = dynamic_cast<const reference::DenseWeight*>(args.weight);
    if (weight == nullptr) {
      fail(ErrorCode::kInvalidArgument, "gemm: weight was not made by backend {}", name());
    }
    reference::gemm(*weight, args);
  }
  void rms_norm(const RmsNormArgs& args) override {
    check_rms_norm(args);
    reference::rms_norm(args);
  }
  void rope(const RopeArgs& args) override {
    check_rope(args);
    reference::rope(args);
  }
  void latent_rows(const LatentRowsArgs& args) override {
    check_latent_rows(args);
    Backend::latent_rows(args);
  }
  void convert(const ConvertArgs& args) override {
    check_convert(args);
    reference::convert(args);
  }
  void attend_dense(const DenseAttendArgs& args) override {
    check_dense(args);
    reference::attend_dense(args);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace tributary
