#include "deploy/app/top/tier_sample.h"

#include <charconv>

#include "core/base/error.h"
#include "core/base/strict_json.h"
#include "deploy/service/protocol/json_object.h"
#include "deploy/service/protocol/pool_metrics_json.h"

namespace tributary {
namespace {

using nlohmann::json;

// Far above what a tier holds, and below what a terminal's user waits for.
constexpr std::size_t kMaxPools = 10'000;
constexpr std::size_t kMaxWorkers = 100'000;
constexpr std::size_t kMaxText = 4096;

TierSample::Worker read_worker(const json& value) {
  JsonObject object(value, "worker");
  JsonObject pages(object.value("pages"), object.path("pages"));
  return {.rank = object.integer<int>("rank", 0),
          .host = object.text("host", kMaxText),
          .backend = object.text("backend", kMaxText),
          .threads = object.integer<int>("threads", 0),
          .state = object.text("state", kMaxText),
          .pages_total = pages.integer<std::int64_t>("total", 0),
          .pages_used = pages.integer<std::int64_t>("used", 0),
          .pages_reserved = pages.integer<std::int64_t>("reserved", 0),
          .homes = object.integer<std::int64_t>("homes", 0),
          .heartbeat_age_ms = object.integer<std::int64_t>("heartbeat_age_ms", 0)};
}

TierSample::Pool read_pool(const json& value) {
  JsonObject object(value, "pool");
  TierSample::Pool pool;
  pool.name = object.text("name", kMaxText);
  pool.run = object.value("run").dump();
  pool.state = object.text("state", kMaxText);
  if (object.has("lost_because")) pool.lost_because = object.text("lost_because", kMaxText);
  pool.costs = object.text("costs", kMaxText);
  pool.communicator = object.text("communicator", kMaxText);
  pool.sequences = object.integer<std::int64_t>("sequences", 0);
  pool.heartbeat_age_ms = object.integer<std::int64_t>("heartbeat_age_ms", 0);
  const json& metrics = object.value("metrics");
  if (!metrics.is_null()) pool.metrics = metrics_from_json(metrics, object.path("metrics"));
  for (const json& worker : object.array("workers", kMaxWorkers)) {
    pool.workers.push_back(read_worker(worker));
  }
  return pool;
}

/// The sum of a metric's samples, over all labels.
double metric_sum(std::string_view text, std::string_view name) {
  double sum = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with(name) || line.size() <= name.size() ||
        (line[name.size()] != ' ' && line[name.size()] != '{')) {
      continue;
    }
    const std::string_view number = line.substr(line.rfind(' ') + 1);
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size()) {
      fail(ErrorCode::kMalformedInput, "metric {}: its value is not a number", name);
    }
    sum += value;
  }
  return sum;
}

}  // namespace

TierSample read_tier(std::string_view cluster_json, std::string_view metrics_text) {
  const json value = parse_strict_json(cluster_json, "cluster");
  JsonObject object(value, "cluster");
  TierSample tier;
  tier.version = object.text("version", kMaxText);
  tier.uptime_ms = object.integer<std::int64_t>("uptime_ms", 0);
  tier.ready = object.boolean("ready");
  tier.sequences = object.integer<std::int64_t>("sequences", 0);
  for (const auto& [result, count] : object.value("admissions").items()) {
    if (!count.is_number_unsigned()) {
      fail(ErrorCode::kMalformedInput, "cluster.admissions.{} is not a count", result);
    }
    if (result == "pending") {
      tier.pending = count.get<std::int64_t>();
    } else if (result == "admitted") {
      tier.admitted = count.get<std::uint64_t>();
    } else if (result != "repeated") {
      tier.refused += count.get<std::uint64_t>();
    }
  }
  for (const json& pool : object.array("pools", kMaxPools)) tier.pools.push_back(read_pool(pool));
  tier.connections = metric_sum(metrics_text, "tributary_http_connections");
  tier.http_requests = metric_sum(metrics_text, "tributary_http_requests_total");
  return tier;
}

}  // namespace tributary
