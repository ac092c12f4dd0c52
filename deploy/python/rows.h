// Latent rows of Python in the format of a pool: as they are stored, or as values that are encoded
// and decoded here.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/model/pool_shape.h"
#include "deploy/python/arrays.h"
#include "deploy/service/client/tier_client.h"

namespace tributary::python {

/// `count` rows (-1: any number) of the pool's shape: [n, C + R] of the type of a plain format; of
/// another one [n, bytes] of uint8, as they are stored, or [n, C + R] of fp32 or bf16, which are
/// encoded. `gaps`: whether rows may lie apart.
[[nodiscard]] Array read_rows(nanobind::handle rows, const char* name, const PoolShape& shape,
                              std::int64_t count, bool gaps);

/// Defines cut_values().
void bind_rows(nanobind::module_& module);

/// Where pulled rows go: into an array of the caller's, as read_rows() takes it, or for None into a
/// new array of NumPy with the rows as they are stored (bf16 as its bits, uint16).
class PulledInto {
 public:
  /// For rows begin .. end - 1. Throws kInvalidArgument for rows that the sequence does not have.
  PulledInto(nanobind::handle out, const SequenceHandle& sequence, std::int64_t begin,
             std::int64_t end);

  /// The memory to pull into.
  [[nodiscard]] std::span<std::byte> stored() noexcept;
  /// Once they are there: the values, if the caller wants these.
  void decode();
  [[nodiscard]] const nanobind::object& array() const noexcept { return place_.owner; }

 private:
  RowLayout layout_;
  std::size_t count_;
  Place place_;
  std::optional<DType> values_;     // of the caller's array, where rows are decoded
  std::vector<std::byte> encoded_;  // then: the rows
};

}  // namespace tributary::python
