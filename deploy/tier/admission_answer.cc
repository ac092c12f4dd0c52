#include "deploy/tier/admission_answer.h"

#include <algorithm>

#include "deploy/tier/json_object.h"
#include "deploy/tier/sequence_json.h"

namespace tributary {

using nlohmann::json;

std::string to_json(const AdmissionAnswer& answer) {
  json object = {{"sequence_id", id_text(answer.sequence.id)},
                 {"pool", answer.pool},
                 {"lease_ms", answer.lease_ms},
                 {"shape", shape_to_json(answer.shape)}};
  put_sequence(object, answer.sequence);
  json workers = json::array();
  for (std::size_t rank = 0; rank < answer.addresses.size(); ++rank) {
    workers.push_back({{"rank", rank}, {"address", answer.addresses[rank]}});
  }
  object["workers"] = std::move(workers);
  return json_text(object);
}

AdmissionAnswer parse_admission_answer(std::string_view text) {
  const json value = parse_json(text, "answer");
  JsonObject object(value, "answer");
  AdmissionAnswer answer;
  answer.sequence.id = parse_id(object.text("sequence_id", 20));
  take_sequence(object, answer.sequence);
  answer.pool = object.text("pool", kMaxNameBytes);
  check_pool_name(answer.pool);
  answer.lease_ms = object.integer<int>("lease_ms", 1);
  answer.shape = shape_from_json(object.value("shape"), object.path("shape"));
  for (const json& element : object.array("workers", kMaxWorkers)) {
    JsonObject worker(element, object.path("workers"));
    const int rank = static_cast<int>(answer.addresses.size());
    static_cast<void>(worker.integer<int>("rank", rank, rank));
    answer.addresses.push_back(worker.text("address", kMaxAddressBytes));
    worker.end();
  }
  object.end();
  const auto workers = static_cast<int>(answer.addresses.size());
  const auto& extents = answer.sequence.extents;
  const bool known = std::all_of(extents.begin(), extents.end(),
                                 [&](const Extent& extent) { return extent.rank < workers; });
  if (answer.sequence.home >= workers || !known) {
    fail(ErrorCode::kMalformedInput, "answer names a worker beyond its {} workers", workers);
  }
  return answer;
}

}  // namespace tributary
