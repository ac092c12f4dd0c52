// An io_context that has what it polls with.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/base/error.h"

namespace tributary {

/// The first object of an io_context opens the descriptors that it polls with: here, where whoever
/// makes it hears of a shortage, and not with a later connection or timer, which nobody expects to
/// fail. One thread runs it.
class IoContext {
 public:
  /// Throws kIo.
  IoContext() try : reactor_(io_) {
  } catch (const boost::system::system_error& error) {
    fail(ErrorCode::kIo, "no event loop can be opened: {}", error.code().message());
  }

  [[nodiscard]] boost::asio::io_context& get() noexcept { return io_; }

 private:
  boost::asio::io_context io_{1};
  boost::asio::steady_timer reactor_;  // never armed
};

}  // namespace tributary
