#include "deploy/service/protocol/pool_messages.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <iterator>
#include <limits>
#include <type_traits>
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
constexpr std::size_t kSequenceBytes = 448;
constexpr std::size_t kExtentBytes = 56;
/// The most of a sequence without its extents: with a key, a secret and a text on what it misses.
constexpr std::size_t kMostSequenceBytes = 896;
/// More do not fit into a message that the control plane reads.
constexpr std::size_t kMaxSequencesOfMessage = 16'384;

// The `type` of each message, in the order of the variants.
constexpr std::array<std::string_view, std::variant_size_v<FromPool>> kFromPool{
    "register", "sequences", "heartbeat", "reply", "ended", "goodbye", "joined"};
constexpr std::array<std::string_view, std::variant_size_v<ToPool>> kToPool{
    "registered", "admit", "free", "query", "set_draining", "drain_worker"};

template <typename T, typename... Message>
concept Is = (std::same_as<std::remove_const_t<T>, Message> || ...);

// The one list of each message's fields, which writing and reading walk. Behind a number stands the
// least one that is read, behind a text or an array the most bytes or elements.

void fields(Is<SequenceInfo> auto& m, const auto& visit) {
  visit.id(m.id);
  visit("idempotency_key", m.idempotency_key, kMaxKeyBytes, check_idempotency_key);
  visit("idempotency_secret", m.idempotency_secret, kMaxSecretBytes, check_idempotency_secret);
  visit.common(m);
}

void contact_fields(auto& m, const auto& visit) {
  visit("host", m.host, kMaxAddressBytes);
  visit("address", m.address, kMaxAddressBytes);
  visit("backend", m.backend, kMaxAddressBytes);
  visit("threads", m.threads, 0);
}

void fields(Is<WorkerInfo> auto& m, const auto& visit) {
  visit.rank(m.rank);
  contact_fields(m, visit);
}

void fields(Is<RegisterPool> auto& m, const auto& visit) {
  visit.protocol(m.protocol);
  visit("name", m.name, kMaxNameBytes, check_pool_name);
  visit("run", m.run, kMaxNameBytes, check_pool_name);  // the same alphabet
  visit("transport", m.transport, kMaxNameBytes);
  visit("transport_reason", m.transport_reason, wire::kMaxText);
  visit("costs", m.costs, wire::kMaxText);
  visit("communicator", m.communicator, kMaxNameBytes);
  visit("shape", m.shape);
  visit("pages_per_worker", m.pages_per_worker, 1);
  visit("lease_ms", m.lease_ms, 1);
  visit("draining", m.draining);
  visit("last_incarnation", m.last_incarnation);
  visit("workers", m.workers, kMaxWorkers);
  visit("sequences", m.sequences, kMaxSequencesOfMessage);
  visit("more", m.more, 0);
}

void fields(Is<MoreSequences> auto& m, const auto& visit) {
  visit("sequences", m.sequences, kMaxSequencesOfMessage);
}

void fields(Is<Heartbeat::Worker> auto& m, const auto& visit) {
  visit.rank(m.rank);
  visit("pages_used", m.pages_used, 0);
  visit("pages_reserved", m.pages_reserved, 0);
  visit("pages_idle", m.pages_idle, 0);
  visit("homes", m.homes, 0);
  visit("heartbeat_age_ms", m.heartbeat_age_ms, 0);
  visit("attended_rows", m.attended_rows, 0);
  visit("attend_seconds", m.attend_seconds);
  visit("draining", m.draining);
  visit("lost", m.lost);
  visit("left", m.left);
}

void fields(Is<Heartbeat> auto& m, const auto& visit) {
  visit("draining", m.draining);
  visit("workers", m.workers, kMaxWorkers);
  visit("metrics", m.metrics);
}

void fields(Is<PoolReply> auto& m, const auto& visit) {
  visit("request", m.request);
  visit("code", m.code);
  visit.message(m.message);
  visit("sequence", m.sequence);
}

void fields(Is<SequenceEnded> auto& m, const auto& visit) {
  visit.id(m.id);
  visit("reason", m.reason, 64);
}

void fields(Is<Goodbye> auto& /*m*/, const auto& /*visit*/) {}

void fields(Is<WorkerJoined> auto& m, const auto& visit) {
  visit("rank", m.worker.rank, 0);
  contact_fields(m.worker, visit);
}

void fields(Is<Registered> auto& m, const auto& visit) {
  visit("code", m.code);
  visit.message(m.message);
  visit("incarnation", m.incarnation);
}

void fields(Is<Admit> auto& m, const auto& visit) {
  visit("request", m.request);
  visit.id(m.id);
  visit.common(m.wanted);
  visit("idempotency_key", m.wanted.idempotency_key, kMaxKeyBytes, check_idempotency_key);
  visit("idempotency_secret", m.wanted.idempotency_secret, kMaxSecretBytes,
        check_idempotency_secret);
}

void fields(Is<Free, Query> auto& m, const auto& visit) {
  visit("request", m.request);
  visit.id(m.id);
}

void fields(Is<SetDraining> auto& m, const auto& visit) {
  visit("request", m.request);
  visit("draining", m.draining);
}

void fields(Is<DrainWorker> auto& m, const auto& visit) {
  visit("request", m.request);
  visit("worker", m.worker, 0);
  visit("draining", m.draining);
}

struct MessageWriter {
  json& object;

  template <typename Value>
  void operator()(const char* field, const Value& value, auto... /*bounds*/) const {
    if constexpr (std::same_as<Value, ErrorCode>) {
      object[field] = error_code_name(value);
    } else if constexpr (std::same_as<Value, PoolShape>) {
      object[field] = shape_to_json(value);
    } else if constexpr (std::same_as<Value, PoolMetrics>) {
      object[field] = metrics_to_json(value);
    } else {
      object[field] = value;
    }
  }
  void operator()(const char* field, const std::optional<SequenceInfo>& sequence) const {
    if (sequence) fields(*sequence, MessageWriter{object[field]});
  }
  template <typename Element>
  void operator()(const char* field, const std::vector<Element>& elements, auto /*most*/) const {
    json& array = object[field] = json::array();
    for (const Element& element : elements) {
      fields(element, MessageWriter{array.emplace_back(json::object())});
    }
  }
  void id(SequenceId id) const { object["id"] = id_text(id); }
  void rank(int rank) const { object["rank"] = rank; }
  void protocol(int protocol) const { object["protocol"] = protocol; }
  void message(const std::string& text) const {
    object["message"] = text.substr(0, kMaxMessageBytes);
  }
  void common(const SequenceInfo& sequence) const { put_sequence(object, sequence); }
  void common(const AdmitRequest& request) const { put_request(object, request); }
};

struct MessageReader {
  JsonObject& object;
  int place = 0;  // in its array

  template <std::integral Integer>
  void operator()(const char* field, Integer& value,
                  std::type_identity_t<Integer> least = std::numeric_limits<Integer>::min()) const {
    value = object.integer<Integer>(field, least);
  }
  void operator()(const char* field, bool& value) const { value = object.boolean(field); }
  void operator()(const char* field, double& value) const { value = object.number(field); }
  void operator()(const char* field, std::string& value, std::size_t most,
                  void (*check)(std::string_view) = nullptr) const {
    value = object.text(field, most);
    if (check != nullptr) check(value);
  }
  void operator()(const char* field, ErrorCode& code) const {
    const std::string& name = object.text(field, 64);
    for (int i = 0; i < kErrorCodes; ++i) {
      code = static_cast<ErrorCode>(i);
      if (error_code_name(code) == name) return;
    }
    fail(ErrorCode::kMalformedInput, "{} is {}: not a code", object.path(field), quote(name));
  }
  void operator()(const char* field, PoolShape& shape) const {
    shape = shape_from_json(object.value(field), object.path(field));
  }
  void operator()(const char* field, PoolMetrics& metrics) const {
    metrics = metrics_from_json(object.value(field), object.path(field));
  }
  void operator()(const char* field, std::optional<SequenceInfo>& sequence) const {
    if (object.has(field)) read(object.value(field), object.path(field), 0, sequence.emplace());
  }
  template <typename Element>
  void operator()(const char* field, std::vector<Element>& elements, std::size_t most) const {
    for (const json& element : object.array(field, most)) {
      const auto next = static_cast<int>(elements.size());
      read(element, object.path(field), next, elements.emplace_back());
    }
  }
  void id(SequenceId& id) const { id = parse_id(object.text("id", 20)); }
  /// Workers come by rank.
  void rank(int& rank) const { rank = object.integer<int>("rank", place, place); }
  /// The rest of another version's message may look different: it is refused by version, not by
  /// form.
  void protocol(int& protocol) const {
    protocol = object.integer<int>("protocol", 1);
    if (protocol == kPoolProtocol) return;
    fail(ErrorCode::kUnsupported, "pool protocol {}: this control plane speaks {}", protocol,
         kPoolProtocol);
  }
  void message(std::string& text) const { text = object.text("message", kMaxMessageBytes); }
  void common(SequenceInfo& sequence) const { take_sequence(object, sequence); }
  void common(AdmitRequest& request) const { request = take_request(object); }

 private:
  static void read(const json& value, std::string_view what, int place, auto& message) {
    JsonObject object(value, what);
    fields(message, MessageReader{object, place});
    object.end();
  }
};

template <typename Message, std::size_t Types>
std::string write(const Message& message, const std::array<std::string_view, Types>& types) {
  json object = {{"type", types[message.index()]}};
  std::visit([&](const auto& m) { fields(m, MessageWriter{object}); }, message);
  return json_text(object);
}

template <typename Message, std::size_t... Types>
Message make_message(std::size_t type, std::index_sequence<Types...> /*types*/) {
  Message message;
  static_cast<void>(((Types == type && (message.template emplace<Types>(), true)) || ...));
  return message;
}

/// Refuses leftover fields.
template <typename Message, std::size_t Types>
Message read(std::string_view text, std::string_view source,
             const std::array<std::string_view, Types>& types) {
  const json value = parse_strict_json(text, source);
  JsonObject object(value, source);
  const std::string& type = object.text("type", 64);
  const auto known = static_cast<std::size_t>(std::ranges::find(types, type) - types.begin());
  if (known == Types) fail(ErrorCode::kMalformedInput, "{}: unknown type {}", source, quote(type));
  auto message = make_message<Message>(known, std::make_index_sequence<Types>());
  std::visit([&](auto& m) { fields(m, MessageReader{object}); }, message);
  object.end();
  return message;
}

void check_workers(const RegisterPool& pool) {
  if (pool.workers.empty()) fail(ErrorCode::kMalformedInput, "register.workers is empty");
  const auto check = [&](int rank, std::string_view field) {
    if (std::cmp_less(rank, pool.workers.size())) return;
    fail(ErrorCode::kMalformedInput, "register.sequences.{} is {}: the pool has {} workers", field,
         rank, pool.workers.size());
  };
  for (const SequenceInfo& sequence : pool.sequences) {
    check(sequence.home, "home");
    for (const Extent& extent : sequence.extents) check(extent.rank, "extents.rank");
    for (const Extent& extent : sequence.lost) check(extent.rank, "lost.rank");
  }
}

}  // namespace

std::int64_t most_registration_bytes(std::int64_t sequences, std::int64_t extents) noexcept {
  return sequences * std::int64_t{kMostSequenceBytes} + extents * std::int64_t{kExtentBytes};
}

std::vector<FromPool> registration(RegisterPool pool) {
  std::vector<MoreSequences> pieces(1);
  std::size_t bytes = 0;
  for (SequenceInfo& sequence : pool.sequences) {
    const std::size_t more = kSequenceBytes + sequence.missing.size() +
                             kExtentBytes * (sequence.extents.size() + sequence.lost.size());
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
  return write(message, kFromPool);
}

std::string to_json(const ToPool& message) {
  return write(message, kToPool);
}

FromPool parse_from_pool(std::string_view text) {
  auto message = read<FromPool>(text, "message from a pool", kFromPool);
  if (const auto* pool = std::get_if<RegisterPool>(&message)) check_workers(*pool);
  return message;
}

ToPool parse_to_pool(std::string_view text) {
  return read<ToPool>(text, "message to a pool", kToPool);
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
