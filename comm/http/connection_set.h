// The open connections of a server: their number, bounded, and how to break them off.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace tributary {

/// Belongs to the loop's thread; count() may be read by any.
class ConnectionSet : public std::enable_shared_from_this<ConnectionSet> {
 public:
  /// One connection's place, given back on destruction.
  class Slot {
   public:
    Slot() = default;
    Slot(std::shared_ptr<ConnectionSet> set, std::uint64_t number)
        : set_(std::move(set)), number_(number) {}
    Slot(Slot&& other) noexcept = default;
    Slot& operator=(Slot&& other) noexcept {
      std::swap(set_, other.set_);
      std::swap(number_, other.number_);
      return *this;
    }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    ~Slot() {
      if (set_ == nullptr) return;
      set_->aborts_.erase(number_);
      set_->count_.store(static_cast<int>(set_->aborts_.size()), std::memory_order_relaxed);
    }
    /// What breaks the connection off; replaces what was set before.
    void on_abort(std::function<void()> abort) {
      if (set_ != nullptr) set_->aborts_[number_] = std::move(abort);
    }

   private:
    std::shared_ptr<ConnectionSet> set_;
    std::uint64_t number_ = 0;
  };

  [[nodiscard]] Slot add() {
    const std::uint64_t number = next_++;
    aborts_[number] = nullptr;
    count_.store(static_cast<int>(aborts_.size()), std::memory_order_relaxed);
    return {shared_from_this(), number};
  }

  [[nodiscard]] int count() const noexcept { return count_.load(std::memory_order_relaxed); }

  void abort_all() {
    const auto aborts = aborts_;  // a copy: connections leave meanwhile
    for (const auto& [number, abort] : aborts) {
      if (abort) abort();
    }
  }

 private:
  std::map<std::uint64_t, std::function<void()>> aborts_;
  std::uint64_t next_ = 0;
  std::atomic<int> count_{0};
};

}  // namespace tributary
