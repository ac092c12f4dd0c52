// What has arrived for one communicator of a mesh. Internal to comm/mesh.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/mesh/mesh_messages.h"
#include "core/base/error.h"
#include "core/base/raw_bytes.h"
#include "core/interface/collective.h"

namespace tributary::mesh {

/// Every rank sends one block to every other rank in each call, if only an empty one, and ends a
/// call when it has the blocks of all. So a rank is one call ahead of another at most, and two
/// places for the blocks of each are enough. State without a lock: its user has one.
class MeshGroup {
 public:
  explicit MeshGroup(int ranks) : places_(static_cast<std::size_t>(ranks)) {}

  /// The memory for `bytes` of a block from `from`, which stays valid until release(). Throws
  /// kMalformedInput for a block that cannot come now.
  [[nodiscard]] std::span<std::byte> place(int from, const MeshBlock& block, std::size_t bytes);
  /// The block, or its rest, has arrived.
  void arrived(int from, std::uint64_t number);

  /// Whether the block of call `number` from `from` is there.
  [[nodiscard]] bool has(int from, std::uint64_t number) const;
  /// A block that is there.
  [[nodiscard]] std::span<const std::byte> block(int from, std::uint64_t number) const;
  [[nodiscard]] CollectiveKind kind(int from, std::uint64_t number) const;
  /// Call `number` has ended here: its places are free again.
  void release(std::uint64_t number);

  /// How many calls have ended here.
  [[nodiscard]] std::uint64_t completed() const noexcept { return completed_; }

  /// Why the communicator has ended, or ok. The first cause stays.
  [[nodiscard]] const Status& cause() const noexcept { return cause_; }
  /// The cause, if it ends call `number`. A rank that fails in a later one has ended this one: it
  /// had the blocks of all, so all have sent theirs.
  [[nodiscard]] Status ends(std::uint64_t number) const {
    return number >= failed_ ? cause_ : Status();
  }
  /// The communicator fails in call `number`. `told`: another rank, which tells all, has said so.
  void end(const Status& cause, std::uint64_t number, bool told = false) {
    failed_ = cause_.ok() ? number : std::min(failed_, number);
    told_ = told_ || (told && cause_.ok());
    if (cause_.ok()) cause_ = cause;
  }
  [[nodiscard]] bool told() const noexcept { return told_; }

 private:
  struct Place {
    std::uint64_t number = 0;  // of the call; 0: free
    CollectiveKind kind{};
    bool whole = false;
    RawBytes bytes;
  };
  using Places = std::array<Place, 2>;

  [[nodiscard]] Place& at(int from, std::uint64_t number) {
    return places_[static_cast<std::size_t>(from)][number % 2];
  }
  [[nodiscard]] const Place& at(int from, std::uint64_t number) const {
    return places_[static_cast<std::size_t>(from)][number % 2];
  }

  std::vector<Places> places_;   // [rank]
  std::uint64_t completed_ = 0;  // the latest call that has ended here
  Status cause_;
  std::uint64_t failed_ = 0;  // the call from which on the cause holds
  bool told_ = false;
};

}  // namespace tributary::mesh
