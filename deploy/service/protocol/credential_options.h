// Lines of tables of options (core/base/option.h): what the processes of a service show each other.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "core/base/option.h"

namespace tributary {

template <class Visitor>
void visit_credentials(Visitor& v, std::string& token_file, std::string& certificate_authority) {
  v(token_file, "--token-file", "FILE", "Bearer token for the control plane",
    {.shown_default = "none"});
  v(certificate_authority, "--ca", "FILE",
    "Certificates to trust, for an https URL and an encrypted data plane, as PEM",
    {.shown_default = "the system's"});
}

/// `use` says what the certificate is for.
template <class Visitor>
void visit_certificate(Visitor& v, std::string& certificate, std::string& key,
                       std::string_view use) {
  v(certificate, "--tls-certificate", "FILE",
    fmt::format("Certificate with its chain, as PEM: {}", use),
    {.shown_default = "none", .needs = "--tls-key"});
  v(key, "--tls-key", "FILE", "Its key, as PEM", {.needs = "--tls-certificate"});
}

}  // namespace tributary
