// A backend whose memory the host cannot read, on machines without a device: another backend's
// memory behind pointers that are off by a constant. Dereferencing one on the host crashes, and so
// does passing the host's own pointers to the backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/interface/backend.h"
#include "tests/core/interface/device_backend.h"

namespace tributary::test {

class RemoteBackend final : public DeviceBackend {
 public:
  explicit RemoteBackend(std::unique_ptr<Backend> inner) : DeviceBackend(std::move(inner)) {}

  /// Downloads and uploads throw from now on.
  void fail_copies() { copies_fail_ = true; }

  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    return std::make_unique<RemoteBuffer>(inner().allocate(bytes));
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override {
    check_copies();
    if (!src.empty()) inner().upload(here(dst), src);
  }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    check_copies();
    if (!dst.empty()) inner().download(dst, here(src));
  }

 private:
  /// Sets a bit that no address of a process on x86-64 has.
  static constexpr std::uintptr_t kOffset = std::uintptr_t{1} << 62;

  template <typename T>
  [[nodiscard]] static T* there(T* pointer) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + kOffset);
  }
  template <typename T>
  [[nodiscard]] static T* here(T* pointer) {
    if (pointer == nullptr) return nullptr;
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) - kOffset);
  }

  [[nodiscard]] bool do_call(const Call& call) override {
    Call moved = call;
    visit_memory(moved, [](auto& part) {
      if constexpr (!kIsPlanData<decltype(part)>) part = here(part);
    });
    inner().call(moved);
    return true;
  }

  class RemoteBuffer final : public Buffer {
   public:
    explicit RemoteBuffer(std::unique_ptr<Buffer> inner)
        : Buffer(there(inner->data()), inner->bytes()), inner_(std::move(inner)) {}

   private:
    std::unique_ptr<Buffer> inner_;
  };

  void check_copies() const {
    if (copies_fail_) fail(ErrorCode::kInternal, "the test said so");
  }

  bool copies_fail_ = false;
};

}  // namespace tributary::test
