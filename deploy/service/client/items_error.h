// The error of a call on many items of which some failed: names each of them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace tributary {

/// One item of a call, and why it failed.
struct ItemFailure {
  std::size_t index = 0;  ///< in the call's list
  Status status;          ///< not ok
};

/// Thrown after all items have ended, with the code and the message of the first that failed. What
/// the call did for the others is done, and their results are where they belong.
class ItemsError : public Error {
 public:
  /// `failed`: not empty, by index.
  explicit ItemsError(std::vector<ItemFailure> failed)
      : Error(failed.front().status.code(), failed.front().status.message()),
        failed_(std::make_shared<const std::vector<ItemFailure>>(std::move(failed))) {}

  /// Returns the items that failed, by index.
  [[nodiscard]] std::span<const ItemFailure> failed() const noexcept { return *failed_; }

 private:
  std::shared_ptr<const std::vector<ItemFailure>> failed_;  // copying an exception must not throw
};

/// Throws ItemsError unless `failed` is empty; brings it into order first.
void throw_if_failed(std::vector<ItemFailure> failed);

}  // namespace tributary
