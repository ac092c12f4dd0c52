#include "comm/http/certificate_check.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/ip/address.hpp>
#include <memory>

#include "comm/http/tls_context.h"
#include "core/base/error.h"

namespace tributary {
namespace {

struct FreeContext {
  void operator()(X509_STORE_CTX* context) const noexcept { X509_STORE_CTX_free(context); }
};

}  // namespace

void check_certificate(const std::filesystem::path& certificate, const std::string& authority,
                       const std::string& host, CertificateUse use) {
  const TlsContext trusted = client_tls_context(authority);  // loads the authorities
  boost::asio::ssl::context own(boost::asio::ssl::context::tls);
  boost::system::error_code error;
  own.use_certificate_chain_file(certificate.string(), error);
  if (error) {
    fail(ErrorCode::kInvalidArgument, "TLS certificate {}: {}", certificate.string(),
         error.message());
  }
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(own.native_handle(), &chain);
  const std::unique_ptr<X509_STORE_CTX, FreeContext> context(X509_STORE_CTX_new());
  if (!context ||
      X509_STORE_CTX_init(context.get(), SSL_CTX_get_cert_store(trusted->native_handle()),
                          SSL_CTX_get0_certificate(own.native_handle()), chain) != 1) {
    fail(ErrorCode::kInternal, "OpenSSL cannot check certificate {}", certificate.string());
  }
  X509_VERIFY_PARAM* checks = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_purpose(
      checks, use == CertificateUse::kServer ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT);
  if (!host.empty()) {
    boost::asio::ip::make_address(host, error);
    const int set = error ? X509_VERIFY_PARAM_set1_host(checks, host.c_str(), 0)
                          : X509_VERIFY_PARAM_set1_ip_asc(checks, host.c_str());
    if (set != 1) fail(ErrorCode::kInvalidArgument, "{}: no name for a certificate", host);
  }
  if (X509_verify_cert(context.get()) == 1) return;
  const char* reason = X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
  ERR_clear_error();
  fail(ErrorCode::kInvalidArgument, "TLS certificate {}, checked against {}{}: {}",
       certificate.string(),
       authority.empty() ? "the system's authorities" : fmt::format("authority {}", authority),
       host.empty() ? "" : fmt::format(" for {}", host), reason);
}

}  // namespace tributary
