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
  /// `launcher_too`: mpirun's own words are passed on as well: lines between two lines of dashes,
  /// and lines that begin with `[HOST:PID]` or with its name.
  explicit ChildLog(bool launcher_too) : launcher_too_(launcher_too) {}

  /// The part of new output to pass on, in whole lines.
  [[nodiscard]] std::string pass_on(std::string_view output);
  /// Why the child ended, if it said so. A worker that was ended by a signal comes before the error
  /// of another that missed it; then the first error of ours, which is not passed on; then what is
  /// known of mpirun's words.
  [[nodiscard]] std::optional<Status> reason() const;

 private:
  bool launcher_too_;
  bool launcher_speaks_ = false;
  std::string line_;      // that has no end yet
  std::string launcher_;  // its words, on one line
  std::optional<Status> error_;
};

}  // namespace tributary
