// A backend that returns before its work is done, on machines without a device: another backend's
// calls, with copies of their plans, in a queue that synchronize() does.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/interface/backend.h"
#include "tests/core/deferred_queue.h"
#include "tests/core/device_backend.h"

namespace tributary::test {

/// Memory that is freed while work is in the queue is a hazard of the queue. Arguments that the
/// inner backend refuses fail the next synchronize() that does the work. A microsecond of it is a
/// piece of work.
class DeferredBackend final : public DeviceBackend {
 public:
  /// `queue` outlives it, and its buffers.
  DeferredBackend(std::unique_ptr<Backend> inner, DeferredQueue& queue)
      : DeviceBackend(std::move(inner)), queue_(queue) {}

  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    return std::make_unique<DeferredBuffer>(inner().allocate(bytes), queue_);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override {
    queue_.add([this, dst, own = copy(src)](Deadline) { inner().upload(dst, own); });
  }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    synchronize(Deadline::after(std::chrono::seconds(60)));
    inner().download(dst, src);
  }
  void synchronize(Deadline deadline) override {
    queue_.drain(deadline);
    queue_.take_failure().throw_if_error();
    DeviceBackend::synchronize(deadline);
  }

  void mark(int index) override {
    queue_.add(
        [this, index](Deadline) { marks_.at(static_cast<std::size_t>(index)) = queue_.done(); });
  }
  [[nodiscard]] std::optional<double> microseconds_between(int first, int second) override {
    queue_.note_hazard();
    return marks_.at(static_cast<std::size_t>(second)) - marks_.at(static_cast<std::size_t>(first));
  }

  void load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                 std::span<std::byte> rows) override {
    queue_.note_hazard();
    DeviceBackend::load_rows(cache, layer, page, slot, rows);
  }

  void append(Cache& cache, const AppendArgs& args) override {
    queue_.add([this, &cache, args, tasks = copy(args.tasks),
                item_layer = copy(args.item_layer)](Deadline) {
      AppendArgs a = args;
      a.tasks = tasks;
      a.item_layer = item_layer;
      inner().append(cache, a);
    });
  }
  void attend(const Cache& cache, const AttendArgs& args) override {
    queue_.add([this, &cache, args, tasks = copy(args.tasks), table = copy(args.block_table),
                item_layer = copy(args.item_layer)](Deadline) {
      AttendArgs a = args;
      a.tasks = tasks;
      a.block_table = table;
      a.item_layer = item_layer;
      inner().attend(cache, a);
    });
  }
  void merge(const MergeArgs& args) override {
    queue_.add([this, args, ops = copy(args.ops)](Deadline) {
      MergeArgs a = args;
      a.ops = ops;
      inner().merge(a);
    });
  }
  void gather(const GatherArgs& args) override {
    queue_.add([this, args, index = copy(args.index)](Deadline) {
      GatherArgs a = args;
      a.index = index;
      inner().gather(a);
    });
  }
  void gemm(const GemmArgs& args) override {
    queue_.add([this, args](Deadline) { inner().gemm(args); });
  }
  void rms_norm(const RmsNormArgs& args) override {
    queue_.add([this, args](Deadline) { inner().rms_norm(args); });
  }
  void rope(const RopeArgs& args) override {
    queue_.add([this, args, positions = copy(args.positions),
                frequencies = copy(args.frequencies)](Deadline) {
      RopeArgs a = args;
      a.positions = positions;
      a.frequencies = frequencies;
      inner().rope(a);
    });
  }
  void convert(const ConvertArgs& args) override {
    queue_.add([this, args](Deadline) { inner().convert(args); });
  }
  void attend_dense(const DenseAttendArgs& args) override {
    queue_.add([this, args](Deadline) { inner().attend_dense(args); });
  }

 private:
  class DeferredBuffer final : public Buffer {
   public:
    DeferredBuffer(std::unique_ptr<Buffer> inner, DeferredQueue& queue)
        : Buffer(inner->data(), inner->bytes()), inner_(std::move(inner)), queue_(queue) {}
    ~DeferredBuffer() override { queue_.note_hazard(); }
    DeferredBuffer(const DeferredBuffer&) = delete;
    DeferredBuffer& operator=(const DeferredBuffer&) = delete;

   private:
    std::unique_ptr<Buffer> inner_;
    DeferredQueue& queue_;
  };

  template <typename T>
  [[nodiscard]] static std::vector<T> copy(std::span<const T> part) {
    return {part.begin(), part.end()};
  }

  DeferredQueue& queue_;
  std::array<int, kMarks> marks_{};
};

}  // namespace tributary::test
