#include "comm/http/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <boost/asio/ip/address.hpp>
#include <string_view>

#include "core/base/error.h"

namespace tributary {
namespace {

namespace ssl = boost::asio::ssl;
using boost::system::error_code;

void check(const error_code& error, std::string_view what, const std::string& path) {
  if (error) fail(ErrorCode::kInvalidArgument, "{} {}: {}", what, path, error.message());
}

TlsContext make_context(ssl::context::method method) {
  auto context = std::make_shared<ssl::context>(method);
  if (SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION) != 1) {
    fail(ErrorCode::kInternal, "OpenSSL refuses TLS 1.2 as the lowest version");
  }
  // Only the parts of TLS 1.2 that 1.3 kept: ephemeral keys (ECDHE) and AEAD. No CBC, no RSA key
  // exchange.
  if (SSL_CTX_set_cipher_list(context->native_handle(), "ECDHE+AESGCM:ECDHE+CHACHA20") != 1) {
    fail(ErrorCode::kInternal, "OpenSSL has none of the requested TLS 1.2 ciphers");
  }
  SSL_CTX_set_options(context->native_handle(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Releasing its buffers saves an idle connection about 34 KiB.
  SSL_CTX_set_mode(context->native_handle(), SSL_MODE_RELEASE_BUFFERS);
  return context;
}

void show_certificate(ssl::context& context, const std::filesystem::path& certificate,
                      const std::filesystem::path& key) {
  error_code error;
  // An encrypted key is an error; otherwise OpenSSL asks for its password on the terminal.
  context.set_password_callback([](std::size_t, ssl::context::password_purpose) { return ""; },
                                error);
  check(error, "TLS key", key.string());
  context.use_certificate_chain_file(certificate.string(), error);
  check(error, "TLS certificate", certificate.string());
  context.use_private_key_file(key.string(), ssl::context::pem, error);
  check(error, "TLS key", key.string());
  if (SSL_CTX_check_private_key(context.native_handle()) != 1) {
    const char* reason = ERR_reason_error_string(ERR_get_error());
    fail(ErrorCode::kInvalidArgument, "TLS key {} does not belong to certificate {}: {}",
         key.string(), certificate.string(), reason != nullptr ? reason : "unknown");
  }
}

void verify_with(ssl::context& context, const std::string& authority, ssl::verify_mode mode) {
  error_code error;
  context.load_verify_file(authority, error);
  check(error, "certificate authority", authority);
  context.set_verify_mode(mode, error);
  check(error, "certificate authority", authority);
}

}  // namespace

TlsContext server_tls_context(const std::filesystem::path& certificate,
                              const std::filesystem::path& key,
                              const std::string& client_authority) {
  TlsContext context = make_context(ssl::context::tls_server);
  show_certificate(*context, certificate, key);
  if (!client_authority.empty()) {
    verify_with(*context, client_authority, ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
  }
  return context;
}

TlsContext client_tls_context(const std::string& certificate_authority,
                              const std::filesystem::path& certificate,
                              const std::filesystem::path& key) {
  TlsContext context = make_context(ssl::context::tls_client);
  if (certificate_authority.empty()) {
    error_code error;
    context->set_default_verify_paths(error);
    check(error, "certificate authorities", "of the system");
    context->set_verify_mode(ssl::verify_peer, error);
    check(error, "certificate authorities", "of the system");
  } else {
    verify_with(*context, certificate_authority, ssl::verify_peer);
  }
  if (!certificate.empty()) show_certificate(*context, certificate, key);
  return context;
}

bool verify_host(ssl_st* ssl, const std::string& host) {
  error_code not_address;
  boost::asio::ip::make_address(host, not_address);
  X509_VERIFY_PARAM* checks = SSL_get0_param(ssl);
  return not_address ? X509_VERIFY_PARAM_set1_host(checks, host.c_str(), 0) == 1 &&
                           SSL_set_tlsext_host_name(ssl, host.c_str()) == 1
                     : X509_VERIFY_PARAM_set1_ip_asc(checks, host.c_str()) == 1;
}

std::string verification_error_of(const ssl_st* ssl) {
  const auto result = SSL_get_verify_result(ssl);
  return result == X509_V_OK ? "" : X509_verify_cert_error_string(result);
}

std::string session_binding(ssl_st* ssl) {
  constexpr std::string_view kLabel = "EXPORTER-tributary";
  std::string bytes(32, '\0');
  if (SSL_export_keying_material(ssl, reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
                                 kLabel.data(), kLabel.size(), nullptr, 0,
                                 /*use_context=*/0) != 1) {
    fail(ErrorCode::kInternal, "TLS exports no key");
  }
  return bytes;
}

}  // namespace tributary
