#include "deploy/service/protocol/pool_metrics_json.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "deploy/service/protocol/json_object.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

using nlohmann::json;

namespace {

// Names of an array's slots.

std::string_view refusal(std::size_t i) {
  return wire::refusal_name(static_cast<wire::Refusal>(i));
}
std::string_view limit(std::size_t i) {
  return wire::limit_name(static_cast<wire::Limit>(i));
}
std::string_view phase(std::size_t i) {
  return phase_name(static_cast<Phase>(i));
}
std::string_view cost_kind(std::size_t i) {
  return kCostKinds[i];
}

using SlotName = std::string_view (*)(std::size_t);

/// The one list of the fields, which writing and reading walk.
template <typename Metrics, typename Visit>
void for_each_field(Metrics& m, Visit&& visit) {
  visit("rounds", m.rounds);
  visit("failed_rounds", m.failed_rounds);
  visit("tokens", m.tokens);
  visit("steps", m.steps);
  visit("aborted_steps", m.aborted_steps);
  visit("refused_items", m.refused_items);
  visit("exchanged_bytes", m.exchanged_bytes);
  visit("moves", m.moves);
  visit("cancelled_moves", m.cancelled_moves);
  visit("moved_bytes", m.moved_bytes);
  visit("ingested_rows", m.ingested_rows);
  visit("ingested_bytes", m.ingested_bytes);
  visit("pulled_rows", m.pulled_rows);
  visit("pulled_bytes", m.pulled_bytes);
  visit("refused_rows", m.refused_rows, refusal);
  visit("limited", m.limited, limit);
  visit("prefix_cache_queries", m.prefix_cache_queries);
  visit("prefix_cache_hits", m.prefix_cache_hits);
  visit("admitted", m.admitted);
  visit("freed", m.freed);
  visit("leases_expired", m.leases_expired);
  visit("canaries", m.canaries);
  visit("canary_failures", m.canary_failures);
  visit("canary_error", m.canary_error);
  visit("balance", m.balance);
  visit("cost_factors", m.cost_factors, cost_kind);
  visit("filling", m.filling);
  visit("ready", m.ready);
  visit("stepping", m.stepping);
  visit("connections", m.connections);
  visit("accept_pauses", m.accept_pauses);
  visit("round_seconds", m.round_seconds);
  visit("phase_seconds", m.phase_seconds, phase);
  visit("step_seconds", m.step_seconds);
  visit("commit_interval_seconds", m.commit_interval_seconds);
  visit("first_commit_seconds", m.first_commit_seconds);
  visit("wait_seconds", m.wait_seconds);
  visit("ingest_seconds", m.ingest_seconds);
  visit("batch", m.batch);
}

struct Writer {
  json& object;

  template <typename Value>
  void operator()(const char* field, const Value& value) const {
    object[field] = value;
  }
  template <const auto& Bounds>
  void operator()(const char* field, const Histogram<Bounds>& histogram) const {
    object[field] = {{"counts", histogram.counts}, {"sum", histogram.sum}};
  }
  template <typename Value, std::size_t Size>
  void operator()(const char* field, const std::array<Value, Size>& values, SlotName name) const {
    json slots = json::object();
    for (std::size_t i = 0; i < Size; ++i) {
      Writer{slots}(std::string(name(i)).c_str(), values[i]);
    }
    object[field] = std::move(slots);
  }
};

struct Reader {
  JsonObject& object;

  void operator()(const char* field, std::uint64_t& value) const {
    value = object.integer<std::uint64_t>(field);
  }
  void operator()(const char* field, std::int64_t& value) const {
    value = object.integer<std::int64_t>(field, 0);
  }
  // The error of a result that is NaN is NaN too, and the alarm must still arrive.
  void operator()(const char* field, double& value) const { value = object.number_or_nan(field); }
  template <const auto& Bounds>
  void operator()(const char* field, Histogram<Bounds>& histogram) const {
    JsonObject inner(object.value(field), object.path(field));
    const json& counts = inner.array("counts", histogram.counts.size());
    if (counts.size() != histogram.counts.size()) {
      fail(ErrorCode::kMalformedInput, "{} has {} buckets, not {}", inner.path("counts"),
           counts.size(), histogram.counts.size());
    }
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (!counts[i].is_number_unsigned()) {
        fail(ErrorCode::kMalformedInput, "{} is not a count", inner.path("counts"));
      }
      histogram.counts[i] = counts[i].get<std::uint64_t>();
    }
    histogram.sum = inner.number("sum");
    inner.end();
  }
  template <typename Value, std::size_t Size>
  void operator()(const char* field, std::array<Value, Size>& values, SlotName name) const {
    JsonObject inner(object.value(field), object.path(field));
    for (std::size_t i = 0; i < Size; ++i) {
      Reader{inner}(std::string(name(i)).c_str(), values[i]);
    }
    inner.end();
  }
};

}  // namespace

json metrics_to_json(const PoolMetrics& metrics) {
  json object = json::object();
  for_each_field(metrics, Writer{object});
  return object;
}

PoolMetrics metrics_from_json(const json& value, std::string_view what) {
  JsonObject object(value, what);
  PoolMetrics metrics;
  for_each_field(metrics, Reader{object});
  object.end();
  return metrics;
}

}  // namespace tributary
