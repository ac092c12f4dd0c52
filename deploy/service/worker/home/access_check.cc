#include "deploy/service/worker/home/access_check.h"

namespace tributary {

bool AccessCheck::allowed(std::uint64_t sequence_id, const wire::Token& token) {
  const auto found = known_.find(sequence_id);
  if (found != known_.end()) return wire::same_token(found->second, token);
  const wire::Token right = wire::access_token(key_, sequence_id);
  if (!wire::same_token(right, token)) return false;
  if (known_.size() >= kKept) known_.clear();
  known_.emplace(sequence_id, right);
  return true;
}

}  // namespace tributary
