// The lines that a child process writes, as `up` passes them on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace tributary {

/// Takes a child's output apart into what people read at once and what explains the child's end.
class ChildLog {
 public:
  /// `launcher_too`: what mpirun says of itself, between two lines of dashes, is passed on as well.
  explicit ChildLog(bool launcher_too) : launcher_too_(launcher_too) {}

  /// The part of new output to pass on, in whole lines.
  [[nodiscard]] std::string pass_on(std::string_view output);
  /// The first error with which the child ended; it is not passed on.
  [[nodiscard]] const std::optional<Status>& error() const noexcept { return error_; }

 private:
  bool launcher_too_;
  bool launcher_speaks_ = false;
  std::string line_;  // that has no end yet
  std::optional<Status> error_;
};

}  // namespace tributary
