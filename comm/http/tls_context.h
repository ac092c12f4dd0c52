// OpenSSL contexts for servers and clients: TLS 1.2 with modern ciphers and later, certificates
// from PEM files.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <filesystem>
#include <memory>
#include <string>

struct ssl_st;  // of OpenSSL

namespace tributary {

using TlsContext = std::shared_ptr<boost::asio::ssl::context>;

/// Where `client_authority` names a PEM file, clients must show a certificate of its authorities.
/// Throws kInvalidArgument that names the file and OpenSSL's reason.
[[nodiscard]] TlsContext server_tls_context(const std::filesystem::path& certificate,
                                            const std::filesystem::path& key,
                                            const std::string& client_authority = {});
/// Verifies servers against the authorities in a PEM file, or the system's if it is empty. Shows
/// a certificate to servers that ask for one, unless it is empty. Throws kInvalidArgument.
[[nodiscard]] TlsContext client_tls_context(const std::string& certificate_authority,
                                            const std::filesystem::path& certificate = {},
                                            const std::filesystem::path& key = {});

/// The certificate of the peer has to be of `host`, a name or an address. False if that cannot be.
[[nodiscard]] bool verify_host(ssl_st* ssl, const std::string& host);
/// The reason why the peer's certificate was refused; empty if it was not.
[[nodiscard]] std::string verification_error_of(const ssl_st* ssl);
/// See Stream::binding().
[[nodiscard]] std::string session_binding(ssl_st* ssl);

}  // namespace tributary
