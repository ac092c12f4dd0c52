#include "core/workload/row_origins.h"

#include <cstddef>
#include <map>
#include <utility>

namespace tributary {

RowOrigins::RowOrigins(std::span<const TraceRequest> requests, double length_scale)
    : block_tokens_(static_cast<double>(kHashBlockTokens) * length_scale) {
  std::map<std::pair<std::size_t, std::int64_t>, std::int64_t> first;
  for (const TraceRequest& request : requests) {
    const auto number = std::ssize(requests_);
    Request& known = requests_.emplace_back(Request{request.input_length, {}});
    for (std::size_t block = 0; block < request.hash_ids.size(); ++block) {
      known.origins.push_back(
          first.try_emplace({block, request.hash_ids[block]}, number).first->second);
    }
  }
}

std::int64_t RowOrigins::of(std::int64_t request, std::int64_t position) const {
  const Request& known = requests_[static_cast<std::size_t>(request)];
  const auto block = static_cast<std::size_t>(static_cast<double>(position) / block_tokens_);
  if (position >= known.prompt_tokens || block >= known.origins.size()) return request;
  return known.origins[block];
}

}  // namespace tributary
