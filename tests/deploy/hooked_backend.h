// A backend that can be told to fail, and whose pages begin with a value of the test's choice.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/interface/backend.h"
#include "core/workload/generator.h"

namespace tributary {

/// Passes everything on to `inner`. `hook` is called before each operation that a pool uses, and
/// may throw; `after_attend`, where there is one, may change the states. New caches are filled: all
/// rows of all pages with `page_fill`.
class HookedBackend final : public Backend {
 public:
  HookedBackend(Backend& inner, float page_fill, std::function<void(std::string_view call)> hook,
                std::function<void(const AttendArgs&)> after_attend = {})
      : inner_(inner),
        page_fill_(page_fill),
        hook_(std::move(hook)),
        after_attend_(std::move(after_attend)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return inner_.name(); }
  [[nodiscard]] bool host_memory() const noexcept override { return inner_.host_memory(); }
  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    hook_("allocate");
    return inner_.allocate(bytes);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override { inner_.upload(dst, src); }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    inner_.download(dst, src);
  }
  void synchronize(Deadline deadline) override {
    hook_("synchronize");
    inner_.synchronize(deadline);
  }

  [[nodiscard]] std::unique_ptr<Cache> make_cache(const CacheLayout& layout) override {
    auto cache = inner_.make_cache(layout);
    std::vector<std::byte> row(layout.row_bytes());
    store_as(layout.row_dtype,
             std::vector<float>(static_cast<std::size_t>(layout.latent_dim()), page_fill_),
             row.data());
    const auto source = inner_.allocate(row.size());
    inner_.upload(source->data(), row);
    std::vector<AppendTask> tasks;
    for (std::int32_t page = 0; page < layout.pages; ++page) {
      for (std::int32_t slot = 0; slot < kPageTokens; ++slot) tasks.push_back({0, page, slot, 0});
    }
    for (std::int32_t layer = 0; layer < layout.layers; ++layer) {
      inner_.append(*cache, {.tasks = tasks,
                             .item_layer = std::span(&layer, 1),
                             .source = source->data(),
                             .source_stride_bytes = row.size()});
    }
    return cache;
  }
  [[nodiscard]] std::unique_ptr<Weight> make_weight(const WeightView& view) override {
    return inner_.make_weight(view);
  }

  [[nodiscard]] std::span<std::byte> host_page(Cache& cache, int layer,
                                               std::int32_t page) override {
    return inner_.host_page(cache, layer, page);
  }
  void store_rows(Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                  std::span<const std::byte> rows) override {
    inner_.store_rows(cache, layer, page, slot, rows);
  }
  void load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                 std::span<std::byte> rows) override {
    hook_("load_rows");
    inner_.load_rows(cache, layer, page, slot, rows);
  }

  void append(Cache& cache, const AppendArgs& args) override {
    hook_("append");
    inner_.append(cache, args);
  }
  void attend(const Cache& cache, const AttendArgs& args) override {
    hook_("attend");
    inner_.attend(cache, args);
    if (after_attend_) after_attend_(args);
  }
  void merge(const MergeArgs& args) override {
    hook_("merge");
    inner_.merge(args);
  }
  void gather(const GatherArgs& args) override {
    hook_("gather");
    inner_.gather(args);
  }
  void gemm(const GemmArgs& args) override { inner_.gemm(args); }
  void rms_norm(const RmsNormArgs& args) override { inner_.rms_norm(args); }
  void rope(const RopeArgs& args) override { inner_.rope(args); }
  void convert(const ConvertArgs& args) override { inner_.convert(args); }
  void attend_dense(const DenseAttendArgs& args) override { inner_.attend_dense(args); }

  void mark(int index) override { inner_.mark(index); }
  [[nodiscard]] std::optional<double> microseconds_between(int first, int second) override {
    return inner_.microseconds_between(first, second);
  }
  /// What is recorded calls the hooks when it is recorded, not when it is replayed.
  [[nodiscard]] std::unique_ptr<Recording> record(const std::function<void()>& calls) override {
    return inner_.record(calls);
  }
  [[nodiscard]] bool refill(Recording& recording, const std::function<void()>& calls) override {
    return inner_.refill(recording, calls);
  }
  void replay(const Recording& recording) override { inner_.replay(recording); }

 private:
  Backend& inner_;
  float page_fill_;
  std::function<void(std::string_view)> hook_;
  std::function<void(const AttendArgs&)> after_attend_;
};

}  // namespace tributary
