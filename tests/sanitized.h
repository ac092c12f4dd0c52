// Whether a sanitizer slows this build down: then tests that repeat what others cover are shorter.
#pragma once

namespace tributary::test {

#if defined(__has_feature)  // clang's way
#define TRIBUTARY_TEST_FEATURE(name) __has_feature(name)
#else
#define TRIBUTARY_TEST_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    TRIBUTARY_TEST_FEATURE(address_sanitizer) || TRIBUTARY_TEST_FEATURE(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#undef TRIBUTARY_TEST_FEATURE

}  // namespace tributary::test
