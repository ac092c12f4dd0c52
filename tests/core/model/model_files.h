// Helpers of the tests of core/model: safetensors blobs made by hand, temporary folders, and the
// paths of the golden files.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/error.h"

namespace tributary::test {

/// Header length, header, data: one safetensors file. `stated` replaces the true header length.
inline std::string safetensors_blob(std::string_view header, std::string_view data = {},
                                    std::optional<std::uint64_t> stated = {}) {
  const std::uint64_t length = stated.value_or(header.size());
  std::string blob(sizeof length, '\0');
  std::memcpy(blob.data(), &length, sizeof length);
  return blob.append(header).append(data);
}

/// The bytes of an array of plain values.
template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tributary-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + name);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Writes a file, replacing one of that name; returns its path.
  std::filesystem::path write(std::string_view name, std::string_view content) {
    std::filesystem::path file = path_ / name;
    std::ofstream(file, std::ios::binary) << content;
    return file;
  }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path tiny_safetensors() {
  return std::filesystem::path(TRIBUTARY_REPO_ROOT) / "tests/data/tiny.safetensors";
}

/// A small input of a kind that people have (tests/data/cases).
inline std::filesystem::path case_file(std::string_view name) {
  return std::filesystem::path(TRIBUTARY_REPO_ROOT) / "tests/data/cases" / name;
}

/// A file that is not part of the repository: in $TRIBUTARY_SHARED_DIR, else in ../shared.
inline std::filesystem::path shared_file(std::string_view name) {
  const char* folder = std::getenv("TRIBUTARY_SHARED_DIR");
  const std::filesystem::path root =
      folder != nullptr ? std::filesystem::path(folder)
                        : std::filesystem::path(TRIBUTARY_REPO_ROOT).parent_path() / "shared";
  return root / name;
}

/// The Error that `call` throws, for a look at its code and message.
template <typename Call>
std::optional<Error> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace tributary::test

/// `call` throws Error(code) with `text` in the message.
#define TRIBUTARY_EXPECT_ERROR(call, expected_code, text)                            \
  do {                                                                               \
    const auto tributary_error = ::tributary::test::error_of([&] { (void)(call); }); \
    ASSERT_TRUE(tributary_error.has_value()) << #call " threw nothing";              \
    EXPECT_EQ(tributary_error->code(), expected_code) << tributary_error->what();    \
    EXPECT_THAT(tributary_error->what(), ::testing::HasSubstr(text));                \
  } while (false)
