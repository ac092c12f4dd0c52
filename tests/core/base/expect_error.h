// The error that a call throws, as a value to compare.
#pragma once

#include <string>

#include "core/base/error.h"

namespace tributary {

/// The code of the Error that `call` throws; kOk when it returns.
template <typename Call>
[[nodiscard]] ErrorCode code_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kOk;
}

/// The message of the Error that `call` throws; empty when it returns.
template <typename Call>
[[nodiscard]] std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace tributary
