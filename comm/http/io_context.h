// An io_context that already has its descriptors for polling.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "core/base/error.h"

namespace tributary {

/// The first object of an io_context opens the descriptors that it polls with. It is made here, so
/// that its maker learns of a shortage; a later connection or timer is not expected to fail. One
/// thread runs it.
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
