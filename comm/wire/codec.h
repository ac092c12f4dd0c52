// Messages as bytes, and back. A message lists its fields once, for both directions:
//
//   struct Pong {
//     std::uint64_t request = 0;
//     std::vector<Item> items;
//     static void fields(auto& archive, auto& m) { archive(m.request, m.items); }
//   };
//
// Layout: the fields in the order of that list, packed, little-endian; a list or a text is its
// length (16 bits), then its elements. A field is a number, an array, a text, a list, a struct that
// lists its fields, or an enumeration that has a function is_known(), or counts up from 0 and names
// its last value kLast.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/byte_stream.h"
#include "core/base/error.h"

namespace tributary::wire {

/// Bound of every list in a message, so that a message fits a transport's header. Larger batches
/// take several messages. Elements that are small name a bound of their own, kMost.
inline constexpr std::size_t kMaxItems = 64;
template <typename T>
constexpr std::size_t max_items() {
  if constexpr (requires { T::kMost; }) {
    return T::kMost;
  } else {
    return kMaxItems;
  }
}
/// Bound of every text; longer ones are cut when they are encoded.
inline constexpr std::size_t kMaxText = 512;

class Encoder {
 public:
  void operator()(const auto&... values) { (field(values), ...); }
  [[nodiscard]] std::vector<std::byte> take() { return out_.take(); }

 private:
  template <typename T>
  void field(const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      out_.value(value);
    } else {
      T::fields(*this, value);
    }
  }
  template <typename T, std::size_t N>
  void field(const std::array<T, N>& values) {
    for (const T& value : values) field(value);
  }
  void field(const std::string& text) {
    const auto size = static_cast<std::uint16_t>(std::min(text.size(), kMaxText));
    field(size);
    for (const char c : std::string_view(text).substr(0, size)) field(c);
  }
  template <typename T>
  void field(const std::vector<T>& list) {
    if (list.size() > max_items<T>()) {
      fail(ErrorCode::kInvalidArgument, "message: a list of {} elements, at most {}", list.size(),
           max_items<T>());
    }
    field(static_cast<std::uint16_t>(list.size()));
    for (const T& value : list) field(value);
  }

  ByteWriter out_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : in_(bytes) {}
  void operator()(auto&... values) { (field(values), ...); }
  void end() const {
    if (!in_.empty()) fail(ErrorCode::kMalformedInput, "message: bytes after its end");
  }

 private:
  template <typename T>
  void field(T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      value = in_.value<T>();
    } else if constexpr (std::is_enum_v<T>) {
      using Number = std::underlying_type_t<T>;
      static_assert(std::is_unsigned_v<Number>);
      const auto number = in_.value<Number>();
      value = static_cast<T>(number);
      if constexpr (requires { is_known(value); }) {
        bound(is_known(value), "an enumerator", number);
      } else {
        bound(number <= static_cast<Number>(T::kLast), "an enumerator", number);
      }
    } else {
      T::fields(*this, value);
      if constexpr (requires { is_known(value); })
        bound(is_known(value), "an enumerator", value.id);
    }
  }
  void field(ErrorCode& code) {
    const auto number = in_.value<std::underlying_type_t<ErrorCode>>();
    bound(number >= 0 && number < kErrorCodes, "error code", number);
    code = static_cast<ErrorCode>(number);
  }
  template <typename T, std::size_t N>
  void field(std::array<T, N>& values) {
    for (T& value : values) field(value);
  }
  void field(std::string& text) {
    const auto size = in_.value<std::uint16_t>();
    bound(size <= kMaxText, "length of a text", size);
    text.resize(size);
    for (char& c : text) field(c);
  }
  template <typename T>
  void field(std::vector<T>& list) {
    const auto size = in_.value<std::uint16_t>();
    bound(size <= max_items<T>(), "length of a list", size);
    list.resize(size);
    for (T& value : list) field(value);
  }

  template <typename T>
  static void bound(bool good, std::string_view what, T value) {
    if (!good) fail(ErrorCode::kMalformedInput, "message: {} is {}", what, value);
  }

  ByteReader in_;
};

/// Throws kInvalidArgument for a list of more than kMaxItems.
template <typename Message>
[[nodiscard]] std::vector<std::byte> encode(const Message& message) {
  Encoder out;
  Message::fields(out, message);
  return out.take();
}

/// Throws kMalformedInput for anything that encode() does not write.
template <typename Message>
[[nodiscard]] Message decode(std::span<const std::byte> bytes) {
  Decoder in(bytes);
  Message message;
  Message::fields(in, message);
  in.end();
  return message;
}

}  // namespace tributary::wire
