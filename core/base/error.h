// The one error vocabulary: exceptions (`Error`) on set-up and control paths, values (`Status`) on
// the data path. A message names the thing, the value and the bound.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tributary {

enum class ErrorCode : int {
  kOk = 0,
  kInvalidArgument,       // a flag, a shape or an index outside its bound
  kMalformedInput,        // a file or a message that does not follow its format
  kUnsupported,           // well-formed, but nothing here implements it
  kNotFound,              // names something that does not exist
  kIo,                    // the operating system refused
  kPoolFull,              // no room now; try again when something has been freed
  kTooLarge,              // can never fit
  kFailedPrecondition,    // the right call at the wrong time
  kStaleEpoch,            // the sequence has moved on
  kDeadlineExceeded,      // a wait ended without its event
  kCommunicatorPoisoned,  // an earlier failure ended this communicator
  kWorkerFailed,          // some worker failed inside a round
  kPoolLost,              // the pool that held the sequence is gone
  kWorkerLost,            // a worker that held rows of the sequence, or was its home, is gone
  kUnavailable,           // nobody can do it at the moment
  kPermissionDenied,      // no token, or a wrong one
  kAlreadyExists,         // a thing of this name, id or place exists
  kCorrupt,               // bytes do not have their checksum
  kInternal,              // a bug of ours
};
inline constexpr int kErrorCodes = static_cast<int>(ErrorCode::kInternal) + 1;

/// The code's name as it appears in messages, JSON and logs: `pool_full`, `deadline_exceeded`, ...
[[nodiscard]] std::string_view error_code_name(ErrorCode code) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Outcome of a call on the data path.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const noexcept { return code_ == ErrorCode::kOk; }
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

  /// Throws the status as an Error unless it is ok: the border from data path to control path.
  void throw_if_error() const {
    if (!ok()) throw Error(code_, message_);
  }

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

/// Calls `work` and returns what it throws as a status (kInternal if it is not an Error): the
/// border from control path to data path.
template <typename Work>
[[nodiscard]] Status status_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::exception& error) {
    return {ErrorCode::kInternal, error.what()};
  }
  return {};
}

}  // namespace tributary
