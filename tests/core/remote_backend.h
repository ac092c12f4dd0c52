// A backend whose memory the host cannot read, on machines without a device: another backend's
// memory behind pointers that are off by a constant. Whoever follows one on the host, or hands the
// host's own pointers to the backend, crashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/interface/backend.h"
#include "tests/core/device_backend.h"

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

  void append(Cache& cache, const AppendArgs& args) override {
    AppendArgs a = args;
    a.source = here(a.source);
    inner().append(cache, a);
  }
  void attend(const Cache& cache, const AttendArgs& args) override {
    AttendArgs a = args;
    a.queries = here(a.queries);
    a.states = here(a.states);
    inner().attend(cache, a);
  }
  void merge(const MergeArgs& args) override {
    MergeArgs a = args;
    a.states = here(a.states);
    inner().merge(a);
  }
  void gather(const GatherArgs& args) override {
    GatherArgs a = args;
    a.src = here(a.src);
    a.dst = here(a.dst);
    inner().gather(a);
  }
  void gemm(const GemmArgs& args) override {
    GemmArgs a = args;
    a.x = here(a.x);
    a.y = here(a.y);
    inner().gemm(a);
  }
  void rms_norm(const RmsNormArgs& args) override {
    RmsNormArgs a = args;
    a.x = here(a.x);
    a.weight = here(a.weight);
    a.y = here(a.y);
    inner().rms_norm(a);
  }
  void rope(const RopeArgs& args) override {
    RopeArgs a = args;
    a.x = here(a.x);
    a.y = here(a.y);
    inner().rope(a);
  }
  void convert(const ConvertArgs& args) override {
    ConvertArgs a = args;
    a.src = here(a.src);
    a.dst = here(a.dst);
    inner().convert(a);
  }
  void attend_dense(const DenseAttendArgs& args) override {
    DenseAttendArgs a = args;
    a.q = here(a.q);
    a.kv = here(a.kv);
    a.k_pe = here(a.k_pe);
    a.states = here(a.states);
    inner().attend_dense(a);
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
