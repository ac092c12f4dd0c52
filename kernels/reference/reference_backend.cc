// Memory and wiring of the reference backend; the arithmetic is in reference_attention.cc and
// reference_projection.cc.
#include "kernels/reference/reference_backend.h"

#include <cstring>
#include <variant>

#include "core/base/error.h"
#include "core/interface/validate.h"
#include "kernels/host_memory.h"
#include "kernels/reference/reference_ops.h"

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
  // Every call is complete when it returns.
  void synchronize(Deadline /*deadline*/) override {}

  [[nodiscard]] std::unique_ptr<Cache> make_cache(const CacheLayout& layout) override {
    check_layout(layout, name(), row_formats());
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

 private:
  [[nodiscard]] bool do_call(const Call& call) override {
    return std::visit(
        [this](const auto& args) {
          if constexpr (requires { run(args); }) {
            run(args);
          } else if constexpr (requires { reference::run(args); }) {
            reference::run(args);
          } else {
            return false;
          }
          return true;
        },
        call);
  }
  void run(const AppendArgs& args) const {
    append_rows(own_cache(*args.cache, this), args,
                [](std::byte* to, const std::byte* from, std::size_t bytes) {
                  std::memcpy(to, from, bytes);
                });
  }
  void run(const AttendArgs& args) const { reference::attend(own_cache(*args.cache, this), args); }
  void run(const GemmArgs& args) const {
    const auto* weight = dynamic_cast<const reference::DenseWeight*>(args.weight);
    if (weight == nullptr) {
      fail(ErrorCode::kInvalidArgument, "gemm: weight was not made by backend {}", name());
    }
    reference::gemm(*weight, args);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace tributary
