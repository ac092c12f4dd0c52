// A backend that returns before its work is done, on machines without a device: another backend's
// calls, with copies of their plans, in a queue that synchronize() does. It records calls, if
// asked.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/interface/backend.h"
#include "tests/core/interface/deferred_queue.h"
#include "tests/core/interface/device_backend.h"

namespace tributary::test {

/// Freeing memory while work is queued counts as a hazard of the queue. Arguments that the inner
/// backend refuses fail the synchronize() that does the work. Each piece of work takes a
/// microsecond of this device's time.
class DeferredBackend final : public DeviceBackend {
 public:
  /// `queue` outlives the backend and its buffers. A recording has room for `room` elements in each
  /// piece of plan data; with 0 nothing is recorded.
  DeferredBackend(std::unique_ptr<Backend> inner, DeferredQueue& queue, std::size_t room = 0)
      : DeviceBackend(std::move(inner)), queue_(queue), room_(room) {}

  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    return std::make_unique<DeferredBuffer>(inner().allocate(bytes), queue_);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override {
    queue_.add([this, dst, own = std::vector(src.begin(), src.end())](Deadline) {
      inner().upload(dst, own);
    });
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

  void replay(const Recording& recording) override {
    ++replays_;
    for (const OwnedCall& call : dynamic_cast<const Recorded&>(recording).calls) add(call);
  }
  [[nodiscard]] int records() const noexcept { return records_; }
  [[nodiscard]] int replays() const noexcept { return replays_; }
  /// Calls that could have been recorded but were made one by one.
  [[nodiscard]] int single_calls() const noexcept { return single_calls_; }

 private:
  /// A call that keeps its plan data.
  class OwnedCall {
   public:
    explicit OwnedCall(const Call& call) : call_(call) {
      visit_memory(call_, [this](auto& part) {
        if constexpr (kIsPlanData<decltype(part)>) keep(part);
      });
    }
    [[nodiscard]] const Call& call() const noexcept { return call_; }
    /// Elements of the largest piece of plan data.
    [[nodiscard]] std::size_t largest() const noexcept { return largest_; }

   private:
    template <typename T>
    void keep(PlanData<T>& part) {
      const auto own = std::make_shared<const std::vector<T>>(part.begin(), part.end());
      part = std::span<const T>(*own);
      largest_ = std::max(largest_, own->size());
      plan_.push_back(own);
    }

    Call call_;
    std::size_t largest_ = 0;
    std::vector<std::shared_ptr<const void>> plan_;  // copies of this share it
  };
  struct Recorded final : Recording {
    std::vector<OwnedCall> calls;
  };

  [[nodiscard]] bool do_call(const Call& call) override {
    if (recorded_ != nullptr) {
      recorded_->calls.emplace_back(call);
    } else {
      ++single_calls_;
      add(OwnedCall(call));
    }
    return true;
  }
  [[nodiscard]] std::unique_ptr<Recording> do_record(std::span<const Call> calls) override {
    if (room_ == 0) return nullptr;
    ++records_;
    return take(calls);
  }
  [[nodiscard]] bool do_refill(Recording& recording, std::span<const Call> calls) override {
    auto& own = dynamic_cast<Recorded&>(recording);
    auto now = take(calls);
    const bool fits =
        std::ranges::equal(now->calls, own.calls, {}, &OwnedCall::call, &OwnedCall::call) &&
        std::ranges::all_of(now->calls,
                            [this](const OwnedCall& call) { return call.largest() <= room_; });
    if (fits) own.calls = std::move(now->calls);
    return fits;
  }

  void add(const OwnedCall& call) {
    queue_.add([this, call](Deadline) { inner().call(call.call()); });
  }
  [[nodiscard]] std::unique_ptr<Recorded> take(std::span<const Call> calls) {
    auto recorded = std::make_unique<Recorded>();
    recorded_ = recorded.get();
    for (const Call& call : calls) hand_on(call);
    recorded_ = nullptr;
    return recorded;
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

  DeferredQueue& queue_;
  std::size_t room_;
  Recorded* recorded_ = nullptr;
  int records_ = 0;
  int replays_ = 0;
  int single_calls_ = 0;
  std::array<int, kMarks> marks_{};
};

}  // namespace tributary::test
