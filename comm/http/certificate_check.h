// A certificate as its peers will judge it, before the first of them does.
#pragma once

#include <filesystem>
#include <string>

namespace tributary {

enum class CertificateUse { kServer, kClient };

/// Throws kInvalidArgument that names the file and the reason for a certificate (PEM, with its
/// chain) that whoever trusts `authority` (PEM; empty: the system's authorities) refuses: expired,
/// signed by another one, for another use, or for another name than `host`, an address or a name
/// (empty: any).
void check_certificate(const std::filesystem::path& certificate, const std::string& authority,
                       const std::string& host, CertificateUse use);

}  // namespace tributary
