// Memory that every round fills anew. It grows with the largest round, and shrinks again.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "core/base/deadline.h"
#include "core/interface/backend.h"

namespace tributary {

/// Holds at most twice the need of the largest round in the last window, or kSmall.
class ScratchBuffer {
 public:
  /// The window is long beside a round, so that steady traffic never pays for fresh memory. It is
  /// short beside the hours for which one large round would otherwise keep the memory.
  static constexpr std::chrono::milliseconds kWindow{250};
  /// Less than this is not worth freeing.
  static constexpr std::size_t kSmall = std::size_t{1} << 20;

  explicit ScratchBuffer(Backend& backend);

  /// Holds at least `bytes` afterwards; the contents are lost when it has to grow.
  void reserve(std::size_t bytes);
  /// Call it before every round, and occasionally without one. The contents may be lost.
  void trim(Time now);

  [[nodiscard]] std::byte* data() const noexcept { return buffer_->data(); }
  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return buffer_->as<T>();
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return buffer_->bytes(); }

 private:
  void replace(std::size_t bytes);

  Backend& backend_;
  std::unique_ptr<Buffer> buffer_;
  std::size_t needed_ = 0;  // at most, in this window
  Time window_end_{};
};

}  // namespace tributary
