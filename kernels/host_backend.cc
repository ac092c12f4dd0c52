#include "kernels/host_backend.h"

#include <algorithm>
#include <cstring>

#include "core/interface/validate.h"

namespace tributary {

std::unique_ptr<Buffer> HostBackend::allocate(std::size_t bytes) {
  return make_host_buffer(bytes);
}

void HostBackend::upload(std::byte* dst, std::span<const std::byte> src) {
  if (!src.empty()) std::memcpy(dst, src.data(), src.size());
}

void HostBackend::download(std::span<std::byte> dst, const std::byte* src) {
  if (!dst.empty()) std::memcpy(dst.data(), src, dst.size());
}

std::unique_ptr<Cache> HostBackend::make_cache(const CacheLayout& layout) {
  check_layout(layout, name(), formats_);
  auto cache = std::make_unique<HostCache>(layout, this);
  place(*cache);
  return cache;
}

std::span<std::byte> HostBackend::host_page(Cache& cache, int layer, std::int32_t page) {
  const HostCache& host = own(cache);
  check_page(host.layout(), "host_page", layer, page);
  return {host.layer_data(layer) + static_cast<std::size_t>(page) * host.page_bytes(),
          host.page_bytes()};
}

void HostBackend::store_rows(Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                             std::span<const std::byte> rows) {
  check_rows(own(cache).layout(), "store_rows", layer, page, slot, rows.size());
  const auto memory = host_page(cache, layer, page)
                          .subspan(static_cast<std::size_t>(slot) * cache.layout().row_bytes());
  std::copy(rows.begin(), rows.end(), memory.begin());
}

void HostBackend::load_rows(const Cache& cache, int layer, std::int32_t page, std::int32_t slot,
                            std::span<std::byte> rows) {
  const HostCache& host = own(cache);
  check_rows(host.layout(), "load_rows", layer, page, slot, rows.size());
  const std::size_t row_bytes = host.layout().row_bytes();
  const std::byte* row = host.layer_data(layer) +
                         static_cast<std::size_t>(page) * host.page_bytes() +
                         static_cast<std::size_t>(slot) * host.row_bytes();
  for (std::size_t at = 0; at < rows.size(); at += row_bytes, row += host.row_bytes()) {
    std::memcpy(rows.data() + at, row, row_bytes);
  }
}

const HostCache& HostBackend::own(const Cache& cache) const {
  const auto* host = dynamic_cast<const HostCache*>(&cache);
  if (host == nullptr || host->owner() != this) {
    fail(ErrorCode::kInvalidArgument, "cache was not made by backend {}", name());
  }
  return *host;
}

void HostBackend::append_rows(const AppendArgs& args, CopyRow copy) const {
  const HostCache& cache = own(*args.cache);
  const std::size_t row_bytes = cache.layout().row_bytes();
  for (const AppendTask& task : args.tasks) {
    std::byte* page = cache.layer_data(args.item_layer[static_cast<std::size_t>(task.item)]) +
                      static_cast<std::size_t>(task.page) * cache.page_bytes();
    copy(page + static_cast<std::size_t>(task.slot) * row_bytes,
         args.source + static_cast<std::size_t>(task.source) * args.source_stride_bytes, row_bytes);
  }
}

}  // namespace tributary
