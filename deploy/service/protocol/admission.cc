#include "deploy/service/protocol/admission.h"

#include <algorithm>

#include "core/base/strict_json.h"
#include "deploy/service/protocol/json_object.h"
#include "deploy/service/protocol/sequence_json.h"

namespace tributary {

using nlohmann::json;

std::string to_json(const SequenceHandle& sequence) {
  json object = {{"sequence_id", id_text(sequence.id)},
                 {"pool", sequence.pool},
                 {"lease_ms", sequence.lease_ms},
                 {"shape", shape_to_json(sequence.shape)}};
  put_sequence(object, sequence);
  json workers = json::array();
  for (std::size_t rank = 0; rank < sequence.addresses.size(); ++rank) {
    workers.push_back({{"rank", rank}, {"address", sequence.addresses[rank]}});
  }
  object["workers"] = std::move(workers);
  return json_text(object);
}

SequenceHandle parse_sequence_handle(std::string_view text) {
  const json value = parse_strict_json(text, "answer");
  JsonObject object(value, "answer");
  SequenceHandle sequence;
  sequence.id = parse_id(object.text("sequence_id", 20));
  take_sequence(object, sequence);
  sequence.pool = object.text("pool", kMaxNameBytes);
  check_pool_name(sequence.pool);
  sequence.lease_ms = object.integer<int>("lease_ms", 1);
  sequence.shape = shape_from_json(object.value("shape"), object.path("shape"));
  for (const json& element : object.array("workers", kMaxWorkers)) {
    JsonObject worker(element, object.path("workers"));
    const int rank = static_cast<int>(sequence.addresses.size());
    static_cast<void>(worker.integer<int>("rank", rank, rank));
    sequence.addresses.push_back(worker.text("address", kMaxAddressBytes));
    worker.end();
  }
  object.end();
  const auto workers = static_cast<int>(sequence.addresses.size());
  const auto known = [&](const Extent& extent) { return extent.rank < workers; };
  const auto lost = [&](int rank) { return rank < workers; };
  if (sequence.home >= workers || !std::ranges::all_of(sequence.extents, known) ||
      !std::ranges::all_of(sequence.lost, known) ||
      !std::ranges::all_of(sequence.lost_workers, lost)) {
    fail(ErrorCode::kMalformedInput, "answer names a worker beyond its {} workers", workers);
  }
  return sequence;
}

std::string workers_to_json(const std::vector<std::string>& addresses) {
  return json_text({{"workers", addresses}});
}

std::vector<std::string> parse_workers(std::string_view text) {
  constexpr std::size_t kMost = 1'000'000;
  const json value = parse_strict_json(text, "answer");
  JsonObject object(value, "answer");
  std::vector<std::string> addresses;
  for (const json& address : object.array("workers", kMost)) {
    if (!address.is_string() || address.get_ref<const std::string&>().size() > kMaxAddressBytes) {
      fail(ErrorCode::kMalformedInput, "{}: not an address", object.path("workers"));
    }
    addresses.push_back(address.get<std::string>());
  }
  object.end();
  return addresses;
}

std::string to_json(const AdmitRequest& request) {
  json object = json::object();
  put_request(object, request);
  return json_text(object);
}

AdmitRequest parse_admit_request(std::string_view body, std::string_view idempotency_key,
                                 std::string_view idempotency_secret) {
  json value = parse_strict_json(body, "body");
  if (value.is_object() && !value.contains("spread")) {
    value["spread"] = spread_policy_name(SpreadPolicy::kAuto);
  }
  JsonObject object(value, "body");
  AdmitRequest request = take_request(object);
  object.end();
  if (request.prompt_tokens + request.max_new_tokens < 1) {
    fail(ErrorCode::kMalformedInput, "body: a sequence of 0 tokens");
  }
  check_idempotency_key(idempotency_key);
  check_idempotency_secret(idempotency_secret);
  request.idempotency_key = idempotency_key;
  request.idempotency_secret = idempotency_secret;
  return request;
}

}  // namespace tributary
