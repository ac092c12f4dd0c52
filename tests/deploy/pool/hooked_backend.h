// A backend that can be told to fail, and whose pages begin with a value of the test's choice.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "core/interface/backend.h"

namespace tributary {

/// Passes everything on to `inner`. `hook` is called before each operation that a pool uses, and
/// may throw; `after_attend`, if there is one, may change the states. In new caches all rows of all
/// pages are filled with `page_fill`.
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
    layout.row().encode(std::vector<float>(layout.row().values(), page_fill_), row.data());
    const auto source = inner_.allocate(row.size());
    inner_.upload(source->data(), row);
    std::vector<AppendTask> tasks;
    for (std::int32_t page = 0; page < layout.pages; ++page) {
      for (std::int32_t slot = 0; slot < kPageTokens; ++slot) tasks.push_back({0, page, slot, 0});
    }
    for (std::int32_t layer = 0; layer < layout.layers; ++layer) {
      inner_.call(AppendArgs{.cache = cache.get(),
                             .tasks = tasks,
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

  void mark(int index) override { inner_.mark(index); }
  [[nodiscard]] std::optional<double> microseconds_between(int first, int second) override {
    return inner_.microseconds_between(first, second);
  }
  void replay(const Recording& recording) override { inner_.replay(recording); }

 private:
  [[nodiscard]] bool do_call(const Call& call) override {
    if (std::holds_alternative<AttendMergeArgs>(call)) return false;  // its parts have hooks
    hook_(call_name(call));
    inner_.call(call);
    if (const auto* attend = std::get_if<AttendArgs>(&call); attend && after_attend_) {
      after_attend_(*attend);
    }
    return true;
  }
  // Recorded calls call the hooks when they are recorded, not when they are replayed.
  [[nodiscard]] std::unique_ptr<Recording> do_record(std::span<const Call> calls) override {
    auto recording = inner_.record(calls);
    if (recording != nullptr) hook_all(calls);
    return recording;
  }
  [[nodiscard]] bool do_refill(Recording& recording, std::span<const Call> calls) override {
    hook_all(calls);
    return inner_.refill(recording, calls);
  }
  void hook_all(std::span<const Call> calls) const {
    for (const Call& call : calls) {
      const auto* both = std::get_if<AttendMergeArgs>(&call);
      hook_(both == nullptr ? call_name(call) : both->attend.kName);
      if (both != nullptr) hook_(both->merge.kName);
    }
  }

  Backend& inner_;
  float page_fill_;
  std::function<void(std::string_view)> hook_;
  std::function<void(const AttendArgs&)> after_attend_;
};

}  // namespace tributary
