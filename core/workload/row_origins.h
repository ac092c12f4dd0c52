// Which request a row of a replay's prompt was made for: requests that begin alike begin with the
// same rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/workload/trace.h"

namespace tributary {

class RowOrigins {
 public:
  /// `requests` have lengths of the trace times `length_scale`.
  RowOrigins(std::span<const TraceRequest> requests, double length_scale);

  /// The number of the first request with the rows that `request` has in the block of hash_ids at
  /// `position`; its own where the trace does not say, or behind the prompt.
  [[nodiscard]] std::int64_t of(std::int64_t request, std::int64_t position) const;

 private:
  struct Request {
    std::int64_t prompt_tokens = 0;
    std::vector<std::int64_t> origins;  // by block
  };
  double block_tokens_;
  std::vector<Request> requests_;
};

}  // namespace tributary
