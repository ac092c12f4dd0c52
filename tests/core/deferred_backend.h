// A backend that returns before its work is done, on machines without a device: another backend's
// calls, with copies of their plans, in a queue that synchronize() does. It records calls, if
// asked.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/interface/backend.h"
#include "core/interface/recorded_calls.h"
#include "tests/core/deferred_queue.h"
#include "tests/core/device_backend.h"

namespace tributary::test {

/// Memory that is freed while work is in the queue is a hazard of the queue. Arguments that the
/// inner backend refuses fail the next synchronize() that does the work. A microsecond of it is a
/// piece of work.
class DeferredBackend final : public DeviceBackend {
 public:
  /// `queue` outlives it, and its buffers. A recording has room for `room` elements of a piece of
  /// plan data; none are made where that is 0.
  DeferredBackend(std::unique_ptr<Backend> inner, DeferredQueue& queue, std::size_t room = 0)
      : DeviceBackend(std::move(inner)), queue_(queue), room_(room) {}

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
    add({1, key_of(&cache), key_of(args.source), args.source_stride_bytes},
        {args.tasks.size(), args.item_layer.size()},
        [this, &cache, args, tasks = copy(args.tasks),
         item_layer = copy(args.item_layer)](Deadline) {
          AppendArgs a = args;
          a.tasks = tasks;
          a.item_layer = item_layer;
          inner().append(cache, a);
        });
  }
  void attend(const Cache& cache, const AttendArgs& args) override {
    add({2, key_of(&cache), key_of(args.queries), args.query_stride_bytes, key_of(args.states)},
        {args.tasks.size(), args.block_table.size(), args.item_layer.size()},
        [this, &cache, args, tasks = copy(args.tasks), table = copy(args.block_table),
         item_layer = copy(args.item_layer)](Deadline) {
          AttendArgs a = args;
          a.tasks = tasks;
          a.block_table = table;
          a.item_layer = item_layer;
          inner().attend(cache, a);
        });
  }
  void merge(const MergeArgs& args) override {
    add({3, key_of(args.states), args.shape.record_bytes()}, {args.ops.size()},
        [this, args, ops = copy(args.ops)](Deadline) {
          MergeArgs a = args;
          a.ops = ops;
          inner().merge(a);
        });
  }
  void gather(const GatherArgs& args) override {
    add({4, key_of(args.src), key_of(args.dst), args.record_bytes}, {args.index.size()},
        [this, args, index = copy(args.index)](Deadline) {
          GatherArgs a = args;
          a.index = index;
          inner().gather(a);
        });
  }
  void gemm(const GemmArgs& args) override {
    add({5, key_of(args.weight), key_of(args.x), key_of(args.y), number(args.tokens)}, {},
        [this, args](Deadline) { inner().gemm(args); });
  }
  void rms_norm(const RmsNormArgs& args) override {
    add({6, key_of(args.weight), key_of(args.x), key_of(args.y), number(args.tokens)}, {},
        [this, args](Deadline) { inner().rms_norm(args); });
  }
  void rope(const RopeArgs& args) override {
    add({7, key_of(args.x), key_of(args.y), args.positions.size()}, {},
        [this, args, positions = copy(args.positions),
         frequencies = copy(args.frequencies)](Deadline) {
          RopeArgs a = args;
          a.positions = positions;
          a.frequencies = frequencies;
          inner().rope(a);
        });
  }
  void convert(const ConvertArgs& args) override {
    add({8, key_of(args.src), key_of(args.dst), number(args.rows), number(args.width)}, {},
        [this, args](Deadline) { inner().convert(args); });
  }
  void attend_dense(const DenseAttendArgs& args) override {
    add({9, key_of(args.q), key_of(args.states), number(args.tokens), number(args.keys)}, {},
        [this, args](Deadline) { inner().attend_dense(args); });
  }

  [[nodiscard]] std::unique_ptr<Recording> record(const std::function<void()>& calls) override {
    if (room_ == 0) return nullptr;
    ++records_;
    auto recording = std::make_unique<Recorded>();
    take(*recording, calls);
    return recording;
  }
  [[nodiscard]] bool refill(Recording& recording, const std::function<void()>& calls) override {
    auto& own = dynamic_cast<Recorded&>(recording);
    Recorded now;
    take(now, calls);
    const bool fits = now.keys == own.keys && now.largest <= room_;
    if (fits) own.calls = std::move(now.calls);
    return fits;
  }
  void replay(const Recording& recording) override {
    ++replays_;
    for (const DeferredQueue::Work& call : dynamic_cast<const Recorded&>(recording).calls) {
      queue_.add(call);
    }
  }
  [[nodiscard]] int records() const noexcept { return records_; }
  [[nodiscard]] int replays() const noexcept { return replays_; }
  /// Calls that were made one by one, of those that can be recorded.
  [[nodiscard]] int single_calls() const noexcept { return single_calls_; }

 private:
  struct Recorded final : Recording {
    std::vector<CallsKey> keys;
    std::vector<DeferredQueue::Work> calls;
    std::size_t largest = 0;  // piece of plan data
  };

  /// To the queue, or the recording that is being made. `key`: what is not plan data; `sizes`: of
  /// its pieces.
  void add(const CallsKey& key, const std::vector<std::size_t>& sizes, DeferredQueue::Work work) {
    if (recorded_ == nullptr) {
      ++single_calls_;
      queue_.add(std::move(work));
      return;
    }
    recorded_->keys.push_back(key);
    recorded_->calls.push_back(std::move(work));
    for (const std::size_t size : sizes) recorded_->largest = std::max(recorded_->largest, size);
  }
  void take(Recorded& recorded, const std::function<void()>& calls) {
    recorded_ = &recorded;
    const Status status = status_of(calls);
    recorded_ = nullptr;
    status.throw_if_error();
  }
  [[nodiscard]] static std::uint64_t number(std::int64_t value) {
    return static_cast<std::uint64_t>(value);
  }

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
  std::size_t room_;
  Recorded* recorded_ = nullptr;
  int records_ = 0;
  int replays_ = 0;
  int single_calls_ = 0;
  std::array<int, kMarks> marks_{};
};

}  // namespace tributary::test
