#include "comm/http/tls_errors.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <boost/asio/ssl/error.hpp>

namespace tributary {
namespace {

/// OpenSSL's number of it; 0: it is not OpenSSL's.
int reason_of(const boost::system::error_code& error) noexcept {
  if (error.category() != boost::asio::error::get_ssl_category()) return 0;
  return ERR_GET_REASON(static_cast<unsigned int>(error.value()));
}

}  // namespace

bool answers_without_tls(const boost::system::error_code& error) noexcept {
  return reason_of(error) == SSL_R_WRONG_VERSION_NUMBER;
}

bool peer_refuses_certificate(const boost::system::error_code& error) noexcept {
  constexpr std::array kAlerts{SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED,
                               SSL_R_SSLV3_ALERT_BAD_CERTIFICATE,
                               SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE,
                               SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED,
                               SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED,
                               SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN,
                               SSL_R_TLSV1_ALERT_UNKNOWN_CA,
                               SSL_R_TLSV1_ALERT_ACCESS_DENIED};
  return std::ranges::find(kAlerts, reason_of(error)) != kAlerts.end();
}

}  // namespace tributary
