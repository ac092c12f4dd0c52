// The open connections of a server: their number, a way to abort each, and the ones that may be
// closed when room is needed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace tributary {

/// Used on the loop's thread only, except count(), which any thread may call.
class ConnectionSet : public std::enable_shared_from_this<ConnectionSet> {
 public:
  /// One connection's entry in the set. Destruction removes it.
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
      if (set_ != nullptr) set_->remove(number_);
    }
    /// Sets what aborts the connection, replacing the previous function.
    void on_abort(std::function<void()> abort) {
      if (set_ != nullptr) set_->on_abort(number_, std::move(abort));
    }
    /// Whether the connection may be aborted to make room. True makes it the last one to go.
    void set_evictable(bool evictable) {
      if (set_ != nullptr) set_->set_evictable(number_, evictable);
    }

   private:
    std::shared_ptr<ConnectionSet> set_;
    std::uint64_t number_ = 0;
  };

  [[nodiscard]] Slot add() {
    const std::uint64_t number = next_++;
    entries_.emplace(number, Entry{});
    update_count();
    return {shared_from_this(), number};
  }

  [[nodiscard]] int count() const noexcept { return count_.load(std::memory_order_relaxed); }

  /// Aborts the connection that has been evictable for longest. False where there is none.
  bool evict() {
    if (evictable_.empty()) return false;
    const std::uint64_t number = evictable_.begin()->second;
    const std::function<void()> abort = std::move(entries_.at(number).abort);
    remove(number);  // it no longer counts, though its last handlers may still run
    if (abort) abort();
    return true;
  }

  void abort_all() {
    const auto entries = entries_;  // a copy: an abort removes its connection from the set
    for (const auto& [number, entry] : entries) {
      if (entry.abort) entry.abort();
    }
  }

 private:
  struct Entry {
    std::function<void()> abort;
    std::uint64_t turn = 0;  // its key in evictable_; 0: not there
  };

  void on_abort(std::uint64_t number, std::function<void()> abort) {
    if (const auto found = entries_.find(number); found != entries_.end()) {
      found->second.abort = std::move(abort);
    }
  }
  void set_evictable(std::uint64_t number, bool evictable) {
    const auto found = entries_.find(number);
    if (found == entries_.end()) return;
    evictable_.erase(std::exchange(found->second.turn, evictable ? ++turns_ : 0));
    if (evictable) evictable_.emplace(turns_, number);
  }
  void remove(std::uint64_t number) {
    set_evictable(number, false);
    entries_.erase(number);
    update_count();
  }
  void update_count() {
    count_.store(static_cast<int>(entries_.size()), std::memory_order_relaxed);
  }

  std::map<std::uint64_t, Entry> entries_;
  std::map<std::uint64_t, std::uint64_t> evictable_;  // turn to connection: the first goes first
  std::uint64_t next_ = 0;
  std::uint64_t turns_ = 0;
  std::atomic<int> count_{0};
};

}  // namespace tributary
