#include "deploy/app/replay/replay.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <iterator>
#include <set>
#include <string>

#include "comm/http/http_client.h"
#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/model/mla_shape.h"
#include "deploy/app/meet/meet_service.h"
#include "deploy/app/replay/replay_clients.h"
#include "deploy/app/replay/round_tally.h"
#include "deploy/app/top/tier_sample.h"
#include "deploy/local/hosted_pool.h"
#include "deploy/service/control/pool_choice.h"

namespace tributary {
namespace {

WorkerOptions pool_options(const ReplayOptions& options) {
  MlaShape shape = find_mla_shape(options.shape);
  if (options.heads > 0) shape.heads = options.heads;
  shape.layers = options.layers;
  WorkerOptions pool;
  pool.given_shape = shape;
  pool.listen = options.listen;
  pool.advertise = options.advertise;
  pool.layers = options.layers;
  pool.kv_gib = options.kv_gib;
  pool.leaf_tokens = options.leaf_tokens;
  pool.exchange = options.exchange;
  pool.costs = options.costs;
  pool.backend = options.backend;
  pool.threads = options.threads;
  pool.backend_options = options.backend_options;
  pool.row_format = options.row_format;
  pool.query_dtype = options.query_dtype;
  pool.topk = options.topk;
  pool.leader.max_batch = options.max_batch;
  pool.failure_timeout_ms = options.failure_timeout_ms;
  return pool;
}

/// Before the first step, and not hours into the run: throws kTooLarge where the pool can never
/// hold one of the requests.
void check_requests(const ReplayOptions& options, const std::vector<TraceRequest>& requests,
                    const RegisterPool& pool) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const AdmitRequest request{.prompt_tokens = requests[i].input_length,
                               .max_new_tokens = requests[i].output_length,
                               .spread = options.spread,
                               .idempotency_key = {}};
    if (could_hold(pool, request)) continue;
    const std::int64_t tokens = request.prompt_tokens + request.max_new_tokens;
    fail(ErrorCode::kTooLarge,
         "request {}: {} tokens need {} pages with spread {}; the pool holds {} on each of {} "
         "workers, in leaves of {}",
         i, tokens, ceil_div(tokens, kPageTokens), spread_policy_name(options.spread),
         pool.pages_per_worker, pool.workers.size(), pool.shape.leaf_tokens / kPageTokens);
  }
}

std::int64_t pages_in_use(const Heartbeat& heartbeat) {
  std::int64_t used = 0;
  for (const Heartbeat::Worker& worker : heartbeat.workers) used += worker.pages_used;
  return used;
}

/// Asks the control plane for the pools that serve. Nothing where it does not tell this client.
std::optional<PoolFigures> ask_pools(const ServiceOptions& options) {
  constexpr std::chrono::seconds kTimeout{5};
  PoolFigures figures;
  std::set<std::string> backends, communicators, costs;
  const Status status = status_of([&] {
    HttpClient http({.url = parse_url(options.url),
                     .bearer_token = client_config(options).bearer_token,
                     .certificate_authority = options.certificate_authority});
    const HttpResponse answer = http.request("GET", "/v1/cluster", "", Deadline::after(kTimeout));
    if (answer.status != 200) fail(ErrorCode::kUnavailable, "status {}", answer.status);
    for (const TierSample::Pool& pool : read_tier(answer.body, "").pools) {
      if (pool.state != "serving") continue;
      communicators.insert(pool.communicator);
      costs.insert(pool.costs);
      for (const TierSample::Worker& worker : pool.workers) {
        ++figures.workers;
        figures.threads += fmt::format("{}{}", figures.threads.empty() ? "" : ", ", worker.threads);
        figures.pages_total += worker.pages_total;
        backends.insert(worker.backend);
      }
    }
  });
  if (!status.ok() || figures.workers == 0) return std::nullopt;
  figures.backend = fmt::format("{}", fmt::join(backends, ", "));
  figures.communicator = fmt::format("{}", fmt::join(communicators, ", "));
  figures.costs = fmt::format("{}", fmt::join(costs, ", "));
  return figures;
}

}  // namespace

std::vector<TraceRequest> replay_requests(const ReplayOptions& options) {
  const auto limit = static_cast<std::size_t>(options.requests);
  std::vector<TraceRequest> requests =
      options.trace ? read_trace(*options.trace, limit)
                    : built_in_workload(limit == 0 ? 1000 : limit, options.seed);
  if (requests.empty()) fail(ErrorCode::kInvalidArgument, "the trace holds no request");
  const auto scaled = [&](std::int64_t length) {
    return std::max<std::int64_t>(1,
                                  std::llround(static_cast<double>(length) * options.length_scale));
  };
  for (TraceRequest& request : requests) {
    request.input_length = scaled(request.input_length);
    request.output_length = scaled(request.output_length);
  }
  return requests;
}

ReplayReport replay(const ReplayOptions& options, const std::vector<TraceRequest>& requests,
                    Communicator& communicator, const std::shared_ptr<LocalNetwork>& network,
                    std::FILE* terminal) {
  ReplayReport report;
  RoundTally tally;
  if (network == nullptr && communicator.rank() > 0) {  // rank 0 gets it too, and ends the pool
    for (const int number : {SIGINT, SIGTERM}) (void)std::signal(number, SIG_IGN);
  }
  const auto use = [&](const HostedPool& pool) {
    check_requests(options, requests, pool.card());
    report = run_clients(
        options, requests, terminal, [&] { return pool.make_client(); }, [&] { tally.end_step(); });
    report.rounds = tally.figures();
    report.rounds->pages_in_use_at_end = pages_in_use(pool.heartbeat());
    const RegisterPool& card = pool.card();
    std::vector<int> threads;
    for (const WorkerInfo& worker : card.workers) threads.push_back(worker.threads);
    report.pool = {.workers = static_cast<int>(card.workers.size()),
                   .backend = card.workers.front().backend,
                   .threads = fmt::format("{}", fmt::join(threads, ", ")),
                   .communicator = card.communicator,
                   .costs = card.costs,
                   .pages_total = std::ssize(card.workers) * card.pages_per_worker};
  };
  host_pool(pool_options(options), communicator, network,
            {.run = use,
             .round = [&](const RoundReport& round, std::size_t items, std::int64_t pages_used) {
               tally.add(round, items, pages_used);
             }});
  return report;
}

ReplayReport replay_service(const ReplayOptions& options, const std::vector<TraceRequest>& requests,
                            std::FILE* terminal) {
  meet_service(options.service);
  ReplayReport report = run_clients(options, requests, terminal, [&] {
    return std::make_unique<TierClient>(client_config(options.service));
  });
  report.pool = ask_pools(options.service);
  report.service = options.service.url;
  report.clients = options.clients;
  return report;
}

}  // namespace tributary
