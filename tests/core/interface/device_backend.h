// The part that stand-ins for a device's backend share: an inner backend, whose cache and weights
// they pass on, and memory that is not the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "core/interface/backend.h"

namespace tributary::test {

class DeviceBackend : public Backend {
 public:
  explicit DeviceBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  [[nodiscard]] bool host_memory() const noexcept override { return false; }
  void synchronize(Deadline deadline) override { inner_->synchronize(deadline); }

  [[nodiscard]] std::unique_ptr<Cache> make_cache(const CacheLayout& layout) override {
    return inner_->make_cache(layout);
  }
  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    return inner_->make_weight(view);
  }
  [[nodiscard]] std::span<std::byte> host_page(Cache& /*cache*/, int /*layer*/,
                                               std::int32_t /*page*/) override {
    return {};
  }
  void store_rows(Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                  std::span<const std::byte> rows) override {
    inner_->store_rows(cache, layer, page, slot, rows);
  }
  void load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                 std::span<std::byte> rows) override {
    inner_->load_rows(cache, layer, page, slot, rows);
  }

 protected:
  [[nodiscard]] Backend& inner() noexcept { return *inner_; }

 private:
  std::unique_ptr<Backend> inner_;
};

}  // namespace tributary::test
