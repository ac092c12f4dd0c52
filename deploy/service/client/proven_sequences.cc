#include "deploy/service/client/proven_sequences.h"

namespace tributary {

ProvenSequences::Standing ProvenSequences::standing(std::uint64_t id,
                                                    const wire::Token& token) const {
  const auto found = known_.find(id);
  if (found == known_.end()) return Standing::kUnknown;
  const Known& known = found->second;
  if (known.token == token) return known.proven ? Standing::kProven : Standing::kAsked;
  return known.proven ? Standing::kOther : Standing::kUndecided;
}

void ProvenSequences::asked(std::uint64_t id, const wire::Token& token) {
  known_[id] = {token, false};
  asked_.push_back(id);
}

void ProvenSequences::judged(const wire::ProveReply& reply) {
  if (reply.items.size() > asked_.size()) {
    fail(ErrorCode::kMalformedInput, "judged {} proofs, {} were sent", reply.items.size(),
         asked_.size());
  }
  for (const wire::ProveReply::Item& item : reply.items) {
    const auto known = known_.find(asked_.front());
    asked_.pop_front();
    if (item.code == ErrorCode::kOk) {
      known->second.proven = true;
    } else {
      known_.erase(known);
    }
  }
}

}  // namespace tributary
