#include "deploy/service/protocol/pool_messages.h"

#include <charconv>
#include <iterator>
#include <utility>

#include "comm/wire/codec.h"
#include "core/base/quote.h"
#include "core/base/strict_json.h"
#include "deploy/service/protocol/json_object.h"
#include "deploy/service/protocol/pool_metrics_json.h"
#include "deploy/service/protocol/sequence_json.h"

namespace tributary {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxMessageBytes = 4096;  // of texts in answers
// A registration's pieces, and what is reckoned for a sequence's fields and for an extent.
constexpr std::size_t kPieceBytes = std::size_t{128} << 10;
constexpr std::size_t kSequenceBytes = 384;
constexpr std::size_t kExtentBytes = 56;

json sequence_to_json(const SequenceInfo& sequence) {
  json object = {{"id", id_text(sequence.id)}, {"idempotency_key", sequence.idempotency_key}};
  put_sequence(object, sequence);
  return object;
}

SequenceId take_id(JsonObject& object, std::string_view field) {
  return parse_id(object.text(field, 20));
}

std::string take_key(JsonObject& object) {
  const std::string& key = object.text("idempotency_key", kMaxKeyBytes);
  check_idempotency_key(key);
  return key;
}

SequenceInfo sequence_from_json(const json& value, std::string_view what) {
  JsonObject object(value, what);
  SequenceInfo sequence;
  sequence.id = take_id(object, "id");
  sequence.idempotency_key = take_key(object);
  take_sequence(object, sequence);
  object.end();
  return sequence;
}

ErrorCode take_code(JsonObject& object) {
  const std::string& name = object.text("code", 64);
  for (int i = 0; i < kErrorCodes; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    if (error_code_name(code) == name) return code;
  }
  fail(ErrorCode::kMalformedInput, "{} is {}: not a code", object.path("code"), quote(name));
}

// Writing: one function per message.

json sequences_to_json(const std::vector<SequenceInfo>& sequences) {
  json array = json::array();
  for (const SequenceInfo& sequence : sequences) array.push_back(sequence_to_json(sequence));
  return array;
}

json write(const RegisterPool& message) {
  json workers = json::array();
  for (const WorkerInfo& worker : message.workers) {
    workers.push_back({{"rank", worker.rank},
                       {"host", worker.host},
                       {"address", worker.address},
                       {"backend", worker.backend},
                       {"threads", worker.threads}});
  }
  return {{"type", "register"},
          {"protocol", message.protocol},
          {"name", message.name},
          {"run", message.run},
          {"transport", message.transport},
          {"transport_reason", message.transport_reason},
          {"costs", message.costs},
          {"communicator", message.communicator},
          {"shape", shape_to_json(message.shape)},
          {"pages_per_worker", message.pages_per_worker},
          {"lease_ms", message.lease_ms},
          {"draining", message.draining},
          {"last_incarnation", message.last_incarnation},
          {"workers", std::move(workers)},
          {"sequences", sequences_to_json(message.sequences)},
          {"more", message.more}};
}

json write(const MoreSequences& message) {
  return {{"type", "sequences"}, {"sequences", sequences_to_json(message.sequences)}};
}

json write(const Heartbeat& message) {
  json workers = json::array();
  for (const Heartbeat::Worker& worker : message.workers) {
    workers.push_back({{"rank", worker.rank},
                       {"pages_used", worker.pages_used},
                       {"pages_reserved", worker.pages_reserved},
                       {"homes", worker.homes},
                       {"heartbeat_age_ms", worker.heartbeat_age_ms},
                       {"attended_rows", worker.attended_rows},
                       {"attend_seconds", worker.attend_seconds},
                       {"draining", worker.draining}});
  }
  return {{"type", "heartbeat"},
          {"draining", message.draining},
          {"workers", std::move(workers)},
          {"metrics", metrics_to_json(message.metrics)}};
}

json write(const PoolReply& message) {
  json object = {{"type", "reply"},
                 {"request", message.request},
                 {"code", error_code_name(message.code)},
                 {"message", message.message.substr(0, kMaxMessageBytes)}};
  if (message.sequence) object["sequence"] = sequence_to_json(*message.sequence);
  return object;
}

json write(const SequenceEnded& message) {
  return {{"type", "ended"}, {"id", id_text(message.id)}, {"reason", message.reason}};
}

json write(const Registered& message) {
  return {{"type", "registered"},
          {"code", error_code_name(message.code)},
          {"message", message.message.substr(0, kMaxMessageBytes)},
          {"incarnation", message.incarnation}};
}

json write(const Admit& message) {
  json object = {{"type", "admit"},
                 {"request", message.request},
                 {"id", id_text(message.id)},
                 {"idempotency_key", message.wanted.idempotency_key}};
  put_request(object, message.wanted);
  return object;
}

json write(const Free& message) {
  return {{"type", "free"}, {"request", message.request}, {"id", id_text(message.id)}};
}

json write(const Query& message) {
  return {{"type", "query"}, {"request", message.request}, {"id", id_text(message.id)}};
}

json write(const SetDraining& message) {
  return {{"type", "set_draining"}, {"request", message.request}, {"draining", message.draining}};
}

json write(const DrainWorker& message) {
  return {{"type", "drain_worker"},
          {"request", message.request},
          {"worker", message.worker},
          {"draining", message.draining}};
}

// Reading: one function per message, after `type` has been taken.

void check_rank(int rank, std::size_t workers, const JsonObject& object, std::string_view field) {
  if (std::cmp_greater_equal(rank, workers)) {
    fail(ErrorCode::kMalformedInput, "{} is {}: the pool has {} workers", object.path(field), rank,
         workers);
  }
}

RegisterPool read_register(JsonObject& object) {
  RegisterPool message;
  // The rest of another version's message may look different: it is refused by version, not by
  // form.
  message.protocol = object.integer<int>("protocol", 1);
  if (message.protocol != kPoolProtocol) {
    fail(ErrorCode::kUnsupported, "pool protocol {}: this control plane speaks {}",
         message.protocol, kPoolProtocol);
  }
  message.name = object.text("name", kMaxNameBytes);
  check_pool_name(message.name);
  message.run = object.text("run", 64);
  check_pool_name(message.run);  // the same alphabet
  message.transport = object.text("transport", kMaxNameBytes);
  message.transport_reason = object.text("transport_reason", wire::kMaxText);
  message.costs = object.text("costs", wire::kMaxText);
  message.communicator = object.text("communicator", kMaxNameBytes);
  message.shape = shape_from_json(object.value("shape"), object.path("shape"));
  message.pages_per_worker = object.integer<int>("pages_per_worker", 1);
  message.lease_ms = object.integer<int>("lease_ms", 1);
  message.draining = object.boolean("draining");
  message.last_incarnation = object.integer<std::uint32_t>("last_incarnation");
  for (const json& element : object.array("workers", kMaxWorkers)) {
    JsonObject worker(element, object.path("workers"));
    WorkerInfo info;
    const int next = static_cast<int>(message.workers.size());
    info.rank = worker.integer<int>("rank", next, next);
    info.host = worker.text("host", kMaxAddressBytes);
    info.address = worker.text("address", kMaxAddressBytes);
    info.backend = worker.text("backend", kMaxAddressBytes);
    info.threads = worker.integer<int>("threads", 0);
    worker.end();
    message.workers.push_back(std::move(info));
  }
  if (message.workers.empty()) fail(ErrorCode::kMalformedInput, "register.workers is empty");
  const std::size_t max_sequences = kMaxSequencesPerWorker * message.workers.size();
  for (const json& element : object.array("sequences", max_sequences)) {
    message.sequences.push_back(sequence_from_json(element, object.path("sequences")));
    const SequenceInfo& sequence = message.sequences.back();
    check_rank(sequence.home, message.workers.size(), object, "sequences.home");
    for (const Extent& extent : sequence.extents) {
      check_rank(extent.rank, message.workers.size(), object, "sequences.extents.rank");
    }
  }
  message.more = object.integer<int>("more", 0);
  return message;
}

MoreSequences read_more(JsonObject& object) {
  MoreSequences message;
  for (const json& element : object.array("sequences", kMaxSequencesPerWorker)) {
    message.sequences.push_back(sequence_from_json(element, object.path("sequences")));
  }
  return message;
}

Heartbeat read_heartbeat(JsonObject& object) {
  Heartbeat message;
  message.draining = object.boolean("draining");
  for (const json& element : object.array("workers", kMaxWorkers)) {
    JsonObject worker(element, object.path("workers"));
    Heartbeat::Worker info;
    const int next = static_cast<int>(message.workers.size());
    info.rank = worker.integer<int>("rank", next, next);
    info.pages_used = worker.integer<std::int32_t>("pages_used", 0);
    info.pages_reserved = worker.integer<std::int32_t>("pages_reserved", 0);
    info.homes = worker.integer<std::int64_t>("homes", 0);
    info.heartbeat_age_ms = worker.integer<std::int64_t>("heartbeat_age_ms", 0);
    info.attended_rows = worker.integer<std::int64_t>("attended_rows", 0);
    info.attend_seconds = worker.number("attend_seconds");
    info.draining = worker.boolean("draining");
    worker.end();
    message.workers.push_back(info);
  }
  message.metrics = metrics_from_json(object.value("metrics"), object.path("metrics"));
  return message;
}

PoolReply read_reply(JsonObject& object) {
  PoolReply message;
  message.request = object.integer<std::uint64_t>("request");
  message.code = take_code(object);
  message.message = object.text("message", kMaxMessageBytes);
  if (object.has("sequence")) {
    message.sequence = sequence_from_json(object.value("sequence"), object.path("sequence"));
  }
  return message;
}

SequenceEnded read_ended(JsonObject& object) {
  SequenceEnded message;
  message.id = take_id(object, "id");
  message.reason = object.text("reason", 64);
  return message;
}

Registered read_registered(JsonObject& object) {
  Registered message;
  message.code = take_code(object);
  message.message = object.text("message", kMaxMessageBytes);
  message.incarnation = object.integer<std::uint32_t>("incarnation");
  return message;
}

Admit read_admit(JsonObject& object) {
  Admit message;
  message.request = object.integer<std::uint64_t>("request");
  message.id = take_id(object, "id");
  message.wanted = take_request(object);
  message.wanted.idempotency_key = take_key(object);
  return message;
}

template <typename Message>
Message read_request_and_id(JsonObject& object) {
  Message message;
  message.request = object.integer<std::uint64_t>("request");
  message.id = take_id(object, "id");
  return message;
}

SetDraining read_set_draining(JsonObject& object) {
  SetDraining message;
  message.request = object.integer<std::uint64_t>("request");
  message.draining = object.boolean("draining");
  return message;
}

DrainWorker read_drain_worker(JsonObject& object) {
  DrainWorker message;
  message.request = object.integer<std::uint64_t>("request");
  message.worker = object.integer<int>("worker", 0);
  message.draining = object.boolean("draining");
  return message;
}

/// Opens the message, reads it by its type, refuses leftover fields.
template <typename Message, typename Read>
Message parse_message(std::string_view text, std::string_view source, const Read& read) {
  const json value = parse_strict_json(text, source);
  JsonObject object(value, source);
  const std::string& type = object.text("type", 64);
  std::optional<Message> message = read(type, object);
  if (!message) fail(ErrorCode::kMalformedInput, "{}: unknown type {}", source, quote(type));
  object.end();
  return *std::move(message);
}

}  // namespace

std::vector<FromPool> registration(RegisterPool pool) {
  std::vector<MoreSequences> pieces(1);
  std::size_t bytes = 0;
  for (SequenceInfo& sequence : pool.sequences) {
    const std::size_t more =
        kSequenceBytes + sequence.missing.size() + kExtentBytes * sequence.extents.size();
    if (bytes + more > kPieceBytes && bytes > 0) {
      pieces.emplace_back();
      bytes = 0;
    }
    bytes += more;
    pieces.back().sequences.push_back(std::move(sequence));
  }
  pool.sequences = std::move(pieces.front().sequences);
  pool.more = static_cast<int>(pieces.size()) - 1;
  std::vector<FromPool> messages{std::move(pool)};
  messages.insert(messages.end(), std::make_move_iterator(pieces.begin() + 1),
                  std::make_move_iterator(pieces.end()));
  return messages;
}

std::string to_json(const FromPool& message) {
  return json_text(std::visit([](const auto& m) { return write(m); }, message));
}

std::string to_json(const ToPool& message) {
  return json_text(std::visit([](const auto& m) { return write(m); }, message));
}

FromPool parse_from_pool(std::string_view text) {
  return parse_message<FromPool>(
      text, "message from a pool",
      [](std::string_view type, JsonObject& object) -> std::optional<FromPool> {
        if (type == "register") return read_register(object);
        if (type == "sequences") return read_more(object);
        if (type == "heartbeat") return read_heartbeat(object);
        if (type == "reply") return read_reply(object);
        if (type == "ended") return read_ended(object);
        return std::nullopt;
      });
}

ToPool parse_to_pool(std::string_view text) {
  return parse_message<ToPool>(
      text, "message to a pool",
      [](std::string_view type, JsonObject& object) -> std::optional<ToPool> {
        if (type == "registered") return read_registered(object);
        if (type == "admit") return read_admit(object);
        if (type == "free") return read_request_and_id<Free>(object);
        if (type == "query") return read_request_and_id<Query>(object);
        if (type == "set_draining") return read_set_draining(object);
        if (type == "drain_worker") return read_drain_worker(object);
        return std::nullopt;
      });
}

std::string_view sequence_state_name(SequenceState state) noexcept {
  switch (state) {
    case SequenceState::kFilling:
      return "filling";
    case SequenceState::kReady:
      return "ready";
    case SequenceState::kStepping:
      return "stepping";
  }
  return "unknown";
}

std::string id_text(SequenceId id) {
  return fmt::format("{}", id);
}

SequenceId parse_id(std::string_view text) {
  SequenceId id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  // Accepts only text that id_text() writes: one sequence has one name.
  if (error != std::errc{} || end != text.data() + text.size() || id_text(id) != text) {
    fail(ErrorCode::kMalformedInput, "sequence id {}: not a decimal number of 64 bits",
         quote(text, 24));
  }
  return id;
}

}  // namespace tributary
