// Libraries that are opened when they are needed, so that a program starts on machines without
// them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tributary {

/// Stays open for the life of the process: the threads and exit handlers that such libraries start
/// do not survive unloading.
class SharedLibrary {
 public:
  /// The first of `names` that the dynamic linker can find and open. Throws kUnavailable
  /// with the linker's words for the first one.
  explicit SharedLibrary(std::span<const std::string> names);

  /// Throws kUnavailable where the library has no such function.
  template <typename Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  [[nodiscard]] void* symbol(const char* name) const;

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace tributary
