#include "deploy/service/control/exporter.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

/// The families that are being built.
class Families {
 public:
  /// Samples that follow belong to it.
  void begin(std::string name, std::string help, MetricType type) {
    families_.push_back({std::move(name), std::move(help), type, {}});
  }
  void gauge(std::string name, std::string help) {
    begin(std::move(name), std::move(help), MetricType::Gauge);
  }
  void counter(std::string name, std::string help) {
    begin(std::move(name), std::move(help), MetricType::Counter);
  }

  template <typename Number>
  void add(Labels labels, Number number) {
    MetricFamily& family = families_.back();
    ClientMetric metric;
    metric.label = std::move(labels);
    if (family.type == MetricType::Counter) {
      metric.counter.value = static_cast<double>(number);
    } else {
      metric.gauge.value = static_cast<double>(number);
    }
    family.metric.push_back(std::move(metric));
  }
  template <const auto& Bounds>
  void add(Labels labels, const Histogram<Bounds>& histogram) {
    ClientMetric metric;
    metric.label = std::move(labels);
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
      count += histogram.counts[i];
      const double bound = i < Bounds.size() ? Bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({count, bound});
    }
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = histogram.sum;
    families_.back().metric.push_back(std::move(metric));
  }

  [[nodiscard]] std::string text() {
    // A family without samples would be a line of help alone.
    std::erase_if(families_, [](const MetricFamily& family) { return family.metric.empty(); });
    return prometheus::TextSerializer().Serialize(families_);
  }

 private:
  std::vector<MetricFamily> families_;
};

void add_tier(Families& out, const TierView& tier) {
  out.gauge("tributary_build_info", "1, with the version of the control plane");
  out.add({{"version", std::string(tier.version)}}, 1);

  std::array<std::size_t, kPoolStates> pools{};
  std::array<std::size_t, kWorkerStates> workers{};
  for (const auto& [name, pool] : tier.registry.pools()) {
    ++pools[static_cast<std::size_t>(pool.state)];
    for (const WorkerView& worker : workers_of(pool, tier.now)) {
      ++workers[static_cast<std::size_t>(worker.state)];
    }
  }
  out.gauge("tributary_pools", "Pools that the control plane knows");
  for (std::size_t i = 0; i < pools.size(); ++i) {
    out.add({{"state", std::string(pool_state_name(static_cast<PoolState>(i)))}}, pools[i]);
  }
  out.gauge("tributary_workers", "Workers of the pools that the control plane knows");
  for (std::size_t i = 0; i < workers.size(); ++i) {
    out.add({{"state", std::string(worker_state_name(static_cast<WorkerState>(i)))}}, workers[i]);
  }
  out.counter("tributary_pools_lost_total", "Pools that went away without being replaced");
  out.add({}, tier.registry.ends().pools_lost);
  out.counter("tributary_pool_registrations_total", "Registrations of pools");
  out.add({{"result", "accepted"}}, tier.pools_registered);
  out.add({{"result", "refused"}}, tier.pools_refused);

  out.gauge("tributary_sequences_held", "Sequences that the control plane knows to run");
  out.add({}, sequences_of(tier.registry));
  out.gauge("tributary_pending_admissions", "Admissions that wait for a pool's answer");
  out.add({}, tier.admissions.pending());
  out.counter("tributary_admissions_total", "Requests for a sequence, by what became of them");
  for (std::size_t i = 0; i < tier.admissions.results().size(); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    const std::uint64_t count = tier.admissions.results()[i];
    // The outcomes that every tier has are exported from the start: a rate needs a first sample.
    if (count == 0 && code != ErrorCode::kOk && code != ErrorCode::kPoolFull &&
        code != ErrorCode::kTooLarge && code != ErrorCode::kUnavailable &&
        code != ErrorCode::kDeadlineExceeded) {
      continue;
    }
    out.add({{"result", code == ErrorCode::kOk ? "admitted" : std::string(error_code_name(code))}},
            count);
  }
  out.add({{"result", "repeated"}}, tier.admissions.repeated());

  out.counter("tributary_http_requests_total", "HTTP requests answered or refused, by status");
  for (const auto& [status, count] : tier.http.responses) {
    out.add({{"code", std::to_string(status)}}, count);
  }
  out.counter("tributary_http_connections_closed_total",
              "Connections closed without an answer: no room, idle while room was needed, silent");
  out.add({{"reason", "refused"}}, tier.http.refused);
  out.add({{"reason", "evicted"}}, tier.http.evicted);
  out.add({{"reason", "timed_out"}}, tier.http.timed_out);
  out.gauge("tributary_http_connections", "Connections to the control plane");
  out.add({}, tier.connections);
  out.counter("tributary_log_lines_dropped_total",
              "Lines of the log that nobody was there to read");
  out.add({}, tier.log_lines_dropped);
  out.gauge("tributary_uptime_seconds", "Time since the control plane started");
  out.add({}, seconds_between(tier.start, tier.now));
  out.gauge("tributary_scrape_duration_seconds", "What the scrape before this one cost");
  out.add({}, tier.scrape_seconds);
}

using Field = std::uint64_t PoolMetrics::*;
struct CounterOfPools {
  const char* name;
  const char* help;
  Field field;
};
constexpr CounterOfPools kCounters[] = {
    {"tributary_accept_pauses_total",
     "Times that a worker let nobody in, for want of descriptors or memory",
     &PoolMetrics::accept_pauses},
    {"tributary_tokens_total", "New tokens committed", &PoolMetrics::tokens},
    {"tributary_rounds_total", "Rounds executed", &PoolMetrics::rounds},
    {"tributary_failed_rounds_total", "Rounds that ended with an error",
     &PoolMetrics::failed_rounds},
    {"tributary_refused_items_total", "Items of rounds that were refused",
     &PoolMetrics::refused_items},
    {"tributary_exchanged_bytes_total", "Queries, rows and partial states between workers",
     &PoolMetrics::exchanged_bytes},
    {"tributary_moves_total", "Moves of leaves between workers", &PoolMetrics::moves},
    {"tributary_cancelled_moves_total", "Moves of leaves that were given up",
     &PoolMetrics::cancelled_moves},
    {"tributary_moved_bytes_total", "Bytes of latent rows copied between workers",
     &PoolMetrics::moved_bytes},
    {"tributary_ingested_rows_total", "Latent rows taken from clients",
     &PoolMetrics::ingested_rows},
    {"tributary_ingested_bytes_total", "Bytes of latent rows taken from clients",
     &PoolMetrics::ingested_bytes},
    {"tributary_pulled_rows_total", "Latent rows given back to clients", &PoolMetrics::pulled_rows},
    {"tributary_pulled_bytes_total", "Bytes of latent rows given back to clients",
     &PoolMetrics::pulled_bytes},
    {"tributary_prefix_cache_queries_total", "Prompt tokens of admissions that named their blocks",
     &PoolMetrics::prefix_cache_queries},
    {"tributary_prefix_cache_hits_total", "Prompt tokens whose rows a pool had at admission",
     &PoolMetrics::prefix_cache_hits},
    {"tributary_sequences_admitted_total", "Sequences that the pool took", &PoolMetrics::admitted},
    {"tributary_sequences_freed_total", "Sequences that ended", &PoolMetrics::freed},
    {"tributary_leases_expired_total", "Sequences that ended because their client was silent",
     &PoolMetrics::leases_expired},
    {"tributary_canary_checks_total", "Steps recomputed in float64", &PoolMetrics::canaries},
    {"tributary_canary_failures_total", "Steps whose error was above its bound",
     &PoolMetrics::canary_failures},
};

/// Calls `visit` with every pool that is not lost, and its label.
void for_each_pool(const TierView& tier,
                   const std::function<void(const Pool&, const Labels&)>& visit) {
  for (const auto& [name, pool] : tier.registry.pools()) {
    if (pool.state != PoolState::kLost) visit(pool, {{"pool", name}});
  }
}

void for_each_metrics(const TierView& tier,
                      const std::function<void(const PoolMetrics&, const Labels&)>& visit) {
  for_each_pool(tier, [&](const Pool& pool, const Labels& labels) {
    if (pool.heartbeat) visit(pool.heartbeat->metrics, labels);
  });
}

Labels with(Labels labels, std::string name, std::string_view value) {
  labels.push_back({std::move(name), std::string(value)});
  return labels;
}

void add_workers(Families& out, const TierView& tier) {
  const auto each = [&](const auto& number) {
    for_each_pool(tier, [&](const Pool& pool, const Labels& labels) {
      for (const WorkerView& worker : workers_of(pool, tier.now)) {
        out.add(with(labels, "rank", std::to_string(worker.about->rank)), number(pool, worker));
      }
    });
  };
  const auto beats = [&](auto field) {
    each([&](const Pool&, const WorkerView& worker) { return worker.beat.*field; });
  };
  out.gauge("tributary_pages_capacity", "Pages of a worker");
  each([](const Pool& pool, const WorkerView&) { return pool.about.pages_per_worker; });
  out.gauge("tributary_pages_used",
            "Pages that sequences hold, whether or not their rows have come");
  beats(&Heartbeat::Worker::pages_used);
  out.gauge("tributary_pages_reserved", "Pages promised to admitted sequences, not used yet");
  beats(&Heartbeat::Worker::pages_reserved);
  out.gauge("tributary_pages_idle", "Pages of named blocks that no sequence uses, free to others");
  beats(&Heartbeat::Worker::pages_idle);
  out.gauge("tributary_worker_homes", "Sequences whose home a worker is");
  beats(&Heartbeat::Worker::homes);
  out.counter("tributary_worker_attended_rows_total", "Rows that a worker's queries met");
  beats(&Heartbeat::Worker::attended_rows);
  out.counter("tributary_worker_attend_seconds_total", "Time that a worker attended");
  beats(&Heartbeat::Worker::attend_seconds);
  out.gauge("tributary_heartbeat_age_seconds", "Time since a worker was heard, through its pool");
  each([](const Pool&, const WorkerView& worker) { return worker.age_seconds; });
}

void add_pools(Families& out, const TierView& tier) {
  const auto each = [&](auto field) {
    for_each_metrics(
        tier, [&](const PoolMetrics& m, const Labels& labels) { out.add(labels, m.*field); });
  };
  const auto slots = [&](const char* label, const auto& name, auto field) {
    for_each_metrics(tier, [&](const PoolMetrics& m, const Labels& labels) {
      for (std::size_t i = 0; i < (m.*field).size(); ++i) {
        out.add(with(labels, label, name(i)), (m.*field)[i]);
      }
    });
  };
  const auto histogram = [&](const char* name, const char* help) {
    out.begin(name, help, MetricType::Histogram);
  };
  for (const CounterOfPools& counter : kCounters) {
    out.counter(counter.name, counter.help);
    each(counter.field);
  }
  out.counter("tributary_steps_total", "Steps of one sequence, by how they ended");
  for_each_metrics(tier, [&](const PoolMetrics& m, const Labels& labels) {
    out.add(with(labels, "result", "committed"), m.steps);
    out.add(with(labels, "result", "aborted"), m.aborted_steps);
  });
  out.counter("tributary_refused_rows_total", "Messages with rows that were refused");
  slots(
      "reason", [](std::size_t i) { return wire::refusal_name(static_cast<wire::Refusal>(i)); },
      &PoolMetrics::refused_rows);
  out.counter("tributary_limits_total", "Times that a limit of a worker has taken effect");
  slots(
      "limit", [](std::size_t i) { return wire::limit_name(static_cast<wire::Limit>(i)); },
      &PoolMetrics::limited);
  out.gauge("tributary_sequences", "Sequences of a pool");
  for_each_metrics(tier, [&](const PoolMetrics& m, const Labels& labels) {
    out.add(with(labels, "state", sequence_state_name(SequenceState::kFilling)), m.filling);
    out.add(with(labels, "state", sequence_state_name(SequenceState::kReady)), m.ready);
    out.add(with(labels, "state", sequence_state_name(SequenceState::kStepping)), m.stepping);
  });
  out.gauge("tributary_client_connections", "Clients connected to a pool's workers");
  each(&PoolMetrics::connections);
  out.gauge("tributary_balance_ratio",
            "Rows of the busiest worker over the mean, rounds of the last half minute");
  for_each_metrics(tier, [&](const PoolMetrics& m, const Labels& labels) {
    if (m.balance > 0) out.add(labels, m.balance);
  });
  out.gauge("tributary_cost_factor",
            "Time that rounds took over what the pool's constants predict, by phase");
  slots(
      "phase", [](std::size_t i) { return kCostKinds[i]; }, &PoolMetrics::cost_factors);
  out.gauge("tributary_canary_error_ratio", "Relative error of the last step that was recomputed");
  each(&PoolMetrics::canary_error);
  histogram("tributary_step_duration_seconds", "First item of a step to its commit, one sequence");
  each(&PoolMetrics::step_seconds);
  histogram("tributary_commit_interval_seconds", "A commit of a sequence to its next one");
  each(&PoolMetrics::commit_interval_seconds);
  histogram("tributary_first_commit_seconds", "Admission of a sequence to its first commit");
  each(&PoolMetrics::first_commit_seconds);
  histogram("tributary_round_duration_seconds", "Order of a round to its end");
  each(&PoolMetrics::round_seconds);
  histogram("tributary_wait_duration_seconds", "Arrival of an item to its round");
  each(&PoolMetrics::wait_seconds);
  histogram("tributary_ingest_duration_seconds", "Header of a message with rows to its checksum");
  each(&PoolMetrics::ingest_seconds);
  histogram("tributary_batch_size", "Items of a round");
  each(&PoolMetrics::batch);
  histogram("tributary_phase_duration_seconds", "Phases of a round, slowest worker");
  slots(
      "phase", [](std::size_t i) { return phase_name(static_cast<Phase>(i)); },
      &PoolMetrics::phase_seconds);
}

}  // namespace

std::string metrics_text(const TierView& tier) {
  Families families;
  add_tier(families, tier);
  add_workers(families, tier);
  add_pools(families, tier);
  return families.text();
}

}  // namespace tributary
