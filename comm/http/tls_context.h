// OpenSSL contexts of the two sides: TLS 1.2 and later, certificates from PEM files.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <filesystem>
#include <memory>
#include <string>

namespace tributary {

using TlsContext = std::shared_ptr<boost::asio::ssl::context>;

/// Throws kInvalidArgument with the file and OpenSSL's reason.
[[nodiscard]] TlsContext server_tls_context(const std::filesystem::path& certificate,
                                            const std::filesystem::path& key);
/// Verifies the server against the authorities in a PEM file, or against the system's if empty.
/// Throws kInvalidArgument.
[[nodiscard]] TlsContext client_tls_context(const std::string& certificate_authority);

}  // namespace tributary
