#include "comm/http/http_libraries.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <boost/beast/version.hpp>

namespace tributary {

std::string openssl_version() {
  return OpenSSL_version(OPENSSL_VERSION_STRING);
}

std::string boost_version() {
  return fmt::format("{}.{}", BOOST_VERSION / 100'000, BOOST_VERSION / 100 % 1000);
}

}  // namespace tributary
