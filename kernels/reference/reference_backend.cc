// Memory and wiring of the reference backend; the arithmetic is in reference_attention.cc and
// reference_projection.cc.
#include "kernels/reference/reference_backend.h"

#include <cstring>
#include <variant>

#include "core/interface/validate.h"
#include "kernels/host_backend.h"
#include "kernels/reference/reference_ops.h"

namespace tributary {
namespace {

class ReferenceBackend final : public HostBackend {
 public:
  ReferenceBackend() : HostBackend(row_formats()) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }

  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    check_weight(view);
    return std::make_unique<reference::DenseWeight>(view);
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
    append_rows(args, [](std::byte* to, const std::byte* from, std::size_t bytes) {
      std::memcpy(to, from, bytes);
    });
  }
  void run(const AttendArgs& args) const { reference::attend(own(*args.cache), args); }
  void run(const GemmArgs& args) const {
    reference::gemm(own<reference::DenseWeight>(args.weight), args);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace tributary
