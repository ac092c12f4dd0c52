// A sequence as Python holds it: its handle, the client that reaches it, and a lock against a
// second call.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "deploy/python/arrays.h"
#include "deploy/python/tier.h"

namespace tributary::python {

class Sequence {
 public:
  Sequence(SharedTier tier, SequenceHandle handle)
      : id(handle.id), handle(std::move(handle)), tier_(std::move(tier)) {}

  const SequenceId id;
  SequenceHandle handle;

  /// Throws kFailedPrecondition for one that was unpickled and not adopted, and as usable().
  [[nodiscard]] TierClient& tier() const;
  [[nodiscard]] const SharedTier& shared_tier() const noexcept { return tier_; }
  void set_tier(SharedTier tier) noexcept { tier_ = std::move(tier); }

 private:
  friend class Use;
  SharedTier tier_;
  std::shared_mutex in_use_;
};

/// The other users that a sequence may have: none, or others that only read its handle.
enum class Sharing : std::uint8_t { kAlone, kReaders };

/// Keeps others from using these sequences meanwhile. It does not wait: throws kFailedPrecondition
/// if another thread uses one.
class Use {
 public:
  explicit Use(std::span<Sequence* const> sequences, Sharing sharing = Sharing::kAlone);
  explicit Use(Sequence& sequence, Sharing sharing = Sharing::kAlone);
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use();

 private:
  void take(Sequence& sequence);
  void give_back() noexcept;

  const Sharing sharing_;
  std::vector<Sequence*> taken_;
};

/// `timeout` seconds from now; none: the client's own.
[[nodiscard]] std::optional<Deadline> deadline_of(std::optional<double> timeout);

void bind_sequence(nanobind::module_& module);

}  // namespace tributary::python
