// Whether a sanitizer slows this build down: tests that repeat what others cover are shorter then.
#pragma once

namespace tributary::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tributary::test
