// Vectors to and from a backend's memory.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/interface/backend.h"

namespace tributary::test {

template <typename T>
std::unique_ptr<Buffer> on_device(Backend& backend, const std::vector<T>& values) {
  auto buffer = backend.allocate(values.size() * sizeof(T));
  backend.upload(buffer->data(), std::as_bytes(std::span(values)));
  return buffer;
}

template <typename T>
std::vector<T> fetch(Backend& backend, const Buffer& buffer) {
  std::vector<T> values(buffer.bytes() / sizeof(T));
  backend.download(std::as_writable_bytes(std::span(values)), buffer.data());
  return values;
}

}  // namespace tributary::test
