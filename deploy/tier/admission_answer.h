// What POST /v1/sequences and GET /v1/sequences/{id} answer: all that a client needs to reach a
// sequence. Written by the control plane, read by the client library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/wire/messages.h"
#include "deploy/tier/pool_messages.h"

namespace tributary {

struct AdmissionAnswer {
  SequenceInfo sequence;  // idempotency_key does not travel
  std::string pool;
  int lease_ms = 0;
  std::vector<std::string> addresses;  // of the pool's data plane, by rank; not empty
  wire::Shape shape;
};

/// {"sequence_id": "ID", "epoch", "state", "missing", "pool", "home", "prompt_tokens",
/// "max_new_tokens", "length", "token": "HEX", "lease_ms", "extents": [{"begin", "end", "rank"}],
/// "workers": [{"rank", "address"}], "shape": {fields of wire::Shape, data types by name}}.
[[nodiscard]] std::string to_json(const AdmissionAnswer& answer);
/// Throws kMalformedInput for anything else than what to_json() writes.
[[nodiscard]] AdmissionAnswer parse_admission_answer(std::string_view text);

}  // namespace tributary
