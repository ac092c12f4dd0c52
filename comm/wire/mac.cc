#include "comm/wire/mac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "core/base/error.h"

namespace tributary::wire {

Mac mac(std::span<const std::uint8_t> key, std::span<const std::uint8_t> bytes) {
  Mac result{};
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes.data(), bytes.size(),
           result.data(), &size) == nullptr ||
      size != result.size()) {
    fail(ErrorCode::kInternal, "HMAC-SHA-256 failed");
  }
  return result;
}

bool same_bytes(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) noexcept {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void fill_random(std::span<std::uint8_t> bytes) {
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    fail(ErrorCode::kIo, "the operating system gives no random bytes");
  }
}

}  // namespace tributary::wire
