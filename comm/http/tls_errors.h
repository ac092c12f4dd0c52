// OpenSSL's errors that need other words than its own.
#pragma once

#include <boost/asio/error.hpp>

namespace tributary {

/// Whether an answer was none of TLS.
[[nodiscard]] bool answers_without_tls(const boost::system::error_code& error) noexcept;
/// Whether a peer has ended a TLS session because of our certificate, or of having none.
[[nodiscard]] bool peer_refuses_certificate(const boost::system::error_code& error) noexcept;

}  // namespace tributary
