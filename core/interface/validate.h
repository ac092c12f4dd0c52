// The checks of a backend's arguments. All backends share them, so they refuse the same arguments
// with the same messages. Each throws Error(kInvalidArgument) with the field, the value and the
// bound, before anything is changed. Memory behind pointers cannot be checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/interface/backend.h"

namespace tributary {

/// `formats`: the row formats that `backend` has kernels for.
void check_layout(const CacheLayout& layout, std::string_view backend,
                  std::span<const RowFormat> formats);
/// Throws kUnsupported unless `formats` contains `format`.
void check_row_format(RowFormat format, std::string_view backend,
                      std::span<const RowFormat> formats);
void check_weight(const WeightView& view);
/// Checks a page of one layer.
void check_page(const CacheLayout& layout, std::string_view call, int layer, std::int32_t page);
/// Checks `bytes` bytes of whole rows from `slot` on.
void check_rows(const CacheLayout& layout, std::string_view call, int layer, std::int32_t page,
                std::int32_t slot, std::size_t bytes);
/// Does the checks of Backend::call.
void check_call(const Call& call);

/// Bytes of all rows of a valid layout. Throws kPoolFull if they exceed the address space.
[[nodiscard]] std::size_t cache_bytes(const CacheLayout& layout);

}  // namespace tributary
