#include "deploy/service/worker/serve_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "comm/http/certificate_check.h"
#include "comm/wire/access_token.h"
#include "core/base/line_writer.h"
#include "core/interface/clock.h"
#include "core/interface/condition.h"
#include "core/interface/thread.h"
#include "core/pool/gather_all.h"
#include "core/pool/pool_worker.h"
#include "deploy/runtime/device.h"
#include "deploy/runtime/host_name.h"
#include "deploy/runtime/run_workers.h"
#include "deploy/service/transport/data_transport.h"
#include "deploy/service/worker/home/broken_rounds.h"
#include "deploy/service/worker/home/service_client.h"
#include "deploy/service/worker/leader/beat_watch.h"
#include "deploy/service/worker/leader/leader.h"
#include "deploy/service/worker/leader/pool_costs.h"
#include "deploy/service/worker/listen_address.h"
#include "deploy/service/worker/meet_pool.h"
#include "deploy/service/worker/process_memory.h"
#include "deploy/service/worker/rank_parts.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

/// Ranks start together; one that reads its machine file over a network may be late.
constexpr auto kAgreeTimeout = std::chrono::seconds(60);
constexpr auto kJoinTimeout = std::chrono::seconds(30);
constexpr auto kTick = milliseconds(500);
/// The bound on requests that wait at one home, payloads and outputs: 3000 tokens of DeepSeek-V3's
/// shape.
constexpr std::size_t kMaxRequestBytes = std::size_t{1} << 30;

/// A rank's message to the others about its start.
struct WorkerCard {
  Text host{}, address{}, backend{}, rdma_ports{};
  int threads = 0;
};

/// One transport for all: a client that reaches one worker reaches the others. A process that comes
/// later, maybe on another kind of host, takes what rank 0 has chosen.
ChosenTransport agree_on_transport(const WorkerOptions& options, Communicator& communicator,
                                   const std::vector<WorkerCard>& workers, Deadline deadline) {
  std::vector<std::string> rdma_ports;
  rdma_ports.reserve(workers.size());
  for (const WorkerCard& worker : workers) rdma_ports.emplace_back(worker.rdma_ports.data());
  const ChosenTransport own = choose_transport({.choice = options.transport,
                                                .encrypted = !options.tls_certificate.empty(),
                                                .shared_memory = options.shared_memory},
                                               rdma_ports);
  struct Choice {
    Text scheme{}, reason{};
  };
  Choice chosen;
  set_text(chosen.scheme, own.scheme);
  set_text(chosen.reason, own.reason);
  communicator.broadcast(std::as_writable_bytes(std::span(&chosen, 1)), 0, deadline)
      .throw_if_error();
  return {chosen.scheme.data(), chosen.reason.data()};
}

/// Made from what is random in this run, so that a pool that starts again takes no old token; and
/// from the secret that the workers of a pool without mpirun have, so that no key travels.
wire::Token share_pool_key(const WorkerOptions& options, Communicator& communicator,
                           Deadline deadline) {
  wire::Token run{};
  if (communicator.rank() == 0) run = wire::random_token();
  communicator.broadcast(std::as_writable_bytes(std::span(run)), 0, deadline).throw_if_error();
  return options.meeting.given() ? pool_key(options, run) : run;
}

/// Before anybody connects: who refuses the certificate later says so in no log of this pool. Where
/// no other worker judges it and no authority is named, its clients have authorities of their own.
void check_own_certificate(const WorkerOptions& options, std::string_view address, int workers) {
  if (options.tls_certificate.empty()) return;
  if (options.certificate_authority.empty() && workers == 1) return;
  std::string host(address.substr(address.find("//") + 2));
  host.resize(host.rfind(':'));
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  if (host == "0.0.0.0" || host == "::") host.clear();  // which nobody connects to
  check_certificate(options.tls_certificate, options.certificate_authority, host,
                    CertificateUse::kServer);
  if (!options.client_authority.empty() && workers > 1) {  // a worker is its leader's client
    check_certificate(options.tls_certificate, options.client_authority, "",
                      CertificateUse::kClient);
  }
}

/// Calls work(now) twice a second on its own thread.
class Ticker {
 public:
  Ticker(Clock& clock, std::function<void(Time)> work)
      : thread_(clock, [this, &clock, work = std::move(work)] {
          std::unique_lock lock(mutex_);
          while (
              !clock.wait_until(changed_, lock, clock.now() + kTick, [this] { return ended_; })) {
            lock.unlock();
            work(clock.now());
            lock.lock();
          }
        }) {}
  ~Ticker() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  std::mutex mutex_;
  Condition changed_;
  bool ended_ = false;
  Thread thread_;  // goes last: it uses the rest
};

/// Rank 0 shows others in who come in the place of lost workers, on a thread of its own.
class Doorkeeper {
 public:
  /// All outlive it. `door` may be null: nobody comes then, or where it stays `shut`.
  Doorkeeper(MeshDoor* door, bool shut, LocalLeader& leader, Duration patience,
             std::function<void(const std::string&)> log, Clock& clock)
      : door_(shut ? nullptr : door),
        leader_(leader),
        patience_(patience),
        log_(std::move(log)),
        clock_(clock) {
    if (door != nullptr) door->started();
    if (door_ != nullptr) thread_.emplace(clock, [this] { run(); });
  }
  ~Doorkeeper() {
    if (!thread_) return;
    door_->close();
    thread_->join();
  }
  Doorkeeper(const Doorkeeper&) = delete;
  Doorkeeper& operator=(const Doorkeeper&) = delete;

  void open_slot(int rank) {
    if (door_ != nullptr) door_->open(rank);
  }

 private:
  void run() {
    while (const auto rank = door_->wait()) {
      leader_.expect(*rank);
      const Status in = status_of(
          [&] { door_->let_in(Deadline::after(clock_.now(), patience_)).throw_if_error(); });
      if (!in.ok()) log_(fmt::format("worker {} did not come in: {}", *rank, in.message()));
    }
  }

  MeshDoor* door_;
  LocalLeader& leader_;
  Duration patience_;
  std::function<void(const std::string&)> log_;
  Clock& clock_;
  std::optional<Thread> thread_;
};

WorkerConfig worker_config(const WorkerOptions& options, const PoolModel& model,
                           const PoolCosts& costs) {
  return {.attention = static_cast<const AttentionShape&>(model.served),
          .layers = model.served.layers,
          .pages = model.pages,
          .leaf_tokens = model.served.leaf_tokens,
          .exchange = options.exchange,
          .costs = costs.costs,
          .workers_per_node = costs.workers_per_node,
          .start_timeout = milliseconds(options.start_timeout_ms),
          .round_timeout = milliseconds(options.failure_timeout_ms),
          // The leader sends an order every second, unless it still ends the last round.
          .order_timeout = 2 * milliseconds(options.failure_timeout_ms)};
}

DataPlaneConfig data_plane_config(const WorkerOptions& options, int rank, const PoolModel& model,
                                  const ChosenTransport& transport, const wire::Token& pool_key) {
  DataPlaneConfig data;
  data.rank = rank;
  data.shape = model.served;
  data.transport.listen =
      fmt::format("{}://{}", transport.scheme,
                  with_port(local_address(options.listen),
                            std::to_string(options.port > 0 ? options.port + rank : 0)));
  if (!options.tls_certificate.empty()) {
    data.transport.tls = {.certificate = options.tls_certificate,
                          .key = options.tls_key,
                          .authority = options.certificate_authority,
                          .client_authority = options.client_authority};
  }
  data.transport.secret_of = [pool_key](std::uint64_t id) {
    return wire::access_token(pool_key, id);
  };
  data.transport.busy_poll = options.busy_poll;
  data.transport.shared_memory = options.shared_memory;
  return data;
}

LeaderConfig leader_config(const WorkerOptions& options, std::int32_t pages, int workers,
                           const wire::Token& pool_key, const CostModelConfig& cost_model) {
  const bool exact = options.row_format == RowFormat::kF32 && options.query_dtype == DType::kF32;
  return {.sequencer = {.placement = {.workers = workers, .model = cost_model},
                        .pages_per_worker = pages,
                        .incarnation = 1,
                        .options = options.sequencer},
          .pool_key = pool_key,
          .options = options.leader,
          // Kernels sum bf16 products in fp32: their error against the float64 reference over the
          // same values is their own rounding of the weights.
          .canary_bound = exact ? 1e-4 : 2e-2,
          .failure_timeout = milliseconds(options.failure_timeout_ms)};
}

RegisterPool pool_card(const WorkerOptions& options, const PoolModel& model,
                       const ChosenTransport& transport, const PoolCosts& costs,
                       std::string_view communicator, const std::vector<WorkerCard>& workers) {
  RegisterPool pool;
  pool.name = options.name.empty() ? host_name() : options.name;
  pool.run = wire::token_text(wire::random_token());
  pool.transport = transport.scheme;
  pool.transport_reason = transport.reason;
  pool.costs = costs.source;
  pool.communicator = communicator;
  pool.shape = model.served;
  pool.pages_per_worker = model.pages;
  pool.lease_ms = options.leader.lease_ms;
  for (std::size_t r = 0; r < workers.size(); ++r) {
    pool.workers.push_back({.rank = static_cast<int>(r),
                            .host = workers[r].host.data(),
                            .address = workers[r].address.data(),
                            .backend = workers[r].backend.data(),
                            .threads = workers[r].threads});
  }
  return pool;
}

void lead_pool(const WorkerOptions& options, const WorkerEvents& events, LeaderInbox& inbox,
               const RegisterPool& pool, Leader& leader, std::atomic<ControlChannel*>& channel,
               const ConnectControl& connect_control, Deadline joined) {
  inbox.wait_joined(joined).throw_if_error();
  const auto control = connect_control(
      pool, {.request = [&](ToPool request) { return inbox.post_request(std::move(request)); },
             .describe = [&](RegisterPool& card) { leader.describe(card); },
             .heartbeat = [&] { return leader.heartbeat(); },
             .terminate =
                 [&] {
                   events.log(fmt::format("asked to end; running sequences have {} ms",
                                          options.leader.drain_timeout_ms));
                   inbox.post_stop();
                 },
             .refused = [&](const Status& reason) { inbox.post_end(reason); },
             .log = events.log});
  channel = control.get();
  if (events.serving) events.serving(pool);
  // The channel is destroyed last in this function, and nobody else tells it anything.
  leader.run();
}

void follow_leader(Worker& worker, RowsSender& pulls,
                   const std::function<void(const RoundReport&)>& order_ended) {
  for (bool stop = false; !stop;) {
    const RoundReport report = worker.follow([&] { return worker.copies_made() && pulls.serve(); });
    order_ended(report);
    stop = report.stop;
    const bool goes_on = report.broken || report.status.code() == ErrorCode::kWorkerFailed;
    if (!stop && !goes_on) report.status.throw_if_error();
  }
}

}  // namespace

void run_worker(const WorkerOptions& options, const PoolRanks& ranks,
                const MakeTransport& make_transport, const WorkerEvents& caller_events,
                const ConnectControl& connect_control, Clock& clock) {
  Communicator& communicator = ranks.communicator;
  const int rank = communicator.rank();
  const bool leads = rank == 0;
  WorkerEvents events = caller_events;
  if (!events.log) {
    events.log = [](const std::string& line) {
      stderr_lines().write(fmt::format("tributary: {}", line));
    };
  }
  // The rank is its own process: rank 0 gets the signal too, and ends the pool in order.
  if (events.signals && !leads && events.own_process && !events.asked_to_leave) {
    (void)std::signal(SIGTERM, SIG_IGN);
    (void)std::signal(SIGINT, SIG_IGN);
  }

  const milliseconds start_timeout(options.start_timeout_ms);
  const auto in = [&](Duration timeout) { return Deadline::after(clock.now(), timeout); };
  const int share = threads_per_worker(communicator, in(kAgreeTimeout));
  const wire::Token pool_key = share_pool_key(options, communicator, in(start_timeout));
  WorkerDevice device;
  PoolModel model;
  WorkerCard mine;
  const Status loaded = status_of([&] {
    mine.threads = options.threads > 0 ? options.threads : share;
    device = open_device(options.backend, mine.threads, communicator, options.backend_options);
    model = load_pool_model(options, *device.backend);
  });
  set_text(mine.rdma_ports, rdma_ports());
  const ChosenTransport transport = agree_on_transport(
      options, communicator, gather_values(communicator, loaded, mine, in(start_timeout)),
      in(kAgreeTimeout));
  const PoolCosts costs =
      agree_on_costs(options.costs, host_name(), communicator, in(kAgreeTimeout));
  Backend* backend = device.backend.get();

  RankParts parts(rank, communicator.size(), pool_key, model, kMaxRequestBytes, clock);
  ServiceClient client(model, *backend, parts.queue);
  const WorkerConfig config = worker_config(options, model, costs);
  Worker worker(config, *backend, communicator, client, parts.ingest, device.exchange.get(),
                &parts.port, clock);
  commit_cache(*backend, worker.cache());
  parts.inbox.on_lost([&](int lost, const Status& reason) { worker.interrupt(lost, reason); });
  RowsReceiver rows(rank, parts.ingest, *backend, worker.cache(), parts.row_links(), clock);
  RowsSender pulls(rank, worker.table(), parts.ingest, *backend, worker.cache(), parts.pull_links(),
                   clock);
  std::unique_ptr<DataPlane> plane;
  const Status listening = status_of([&] {
    DataPlaneConfig data = data_plane_config(options, rank, model, transport, pool_key);
    data.log = events.log;
    data.serves = !communicator.comes_late();
    plane = std::make_unique<DataPlane>(data, parts.with(rows, pulls), make_transport, clock);
    set_text(mine.host, host_name());
    set_text(mine.address, advertised_address(options.advertise, plane->address()));
    check_own_certificate(options, mine.address.data(), communicator.size());
    set_text(mine.backend, backend->name());
  });
  const auto workers = gather_values(communicator, listening, mine, in(start_timeout));
  // Only who has got here makes this call: what a process says that comes later counts from now on.
  std::byte here{};
  communicator.broadcast(std::span(&here, 1), 0, in(kAgreeTimeout)).throw_if_error();
  if (leads) {
    events.log(fmt::format("data plane: {} ({})", transport.scheme, transport.reason));
    events.log(fmt::format("placement by {}", costs.source));
  } else {
    parts.remote.connect(workers.front().address.data(), {.rank = rank,
                                                          .host = mine.host.data(),
                                                          .address = mine.address.data(),
                                                          .backend = mine.backend.data(),
                                                          .threads = mine.threads});
  }

  // Beats go on while a round runs, and so does the watch over the others' beats.
  BeatWatch watch(parts.inbox, milliseconds(options.failure_timeout_ms), kTick, clock.now(),
                  events.fatal);
  const auto tick = [&](Time now) {
    plane->tick(now);
    if (!leads) {
      if (events.asked_to_leave && events.asked_to_leave()) parts.port.post(wire::Leaving{});
      return;
    }
    watch.tick(now);
    // Another one may be lost while the pool regroups.
    for (const auto& [rank, reason] : parts.inbox.lost()) worker.interrupt(rank, reason);
  };
  BrokenRounds broken(parts.queue, parts.port, clock);
  const auto order_ended = [&](const RoundReport& report) {
    pulls.order_ended();
    if (!report.waited_for.empty()) {
      const std::span named =
          std::span(report.waited_for).first(std::min(report.waited_for.size(), wire::kMaxItems));
      parts.port.post(
          wire::WaitedFor{.generation = report.generation, .ranks = {named.begin(), named.end()}});
    }
    broken.order_ended(report);
    if (report.generation > 0) plane->serve();
    for (const SequenceId id : report.rows_changed) rows.tell(id);
  };
  if (!leads) {
    const Ticker ticker(clock, tick);
    follow_leader(worker, pulls, order_ended);
    return;
  }
  // What exchanges over other communicators starts together alone.
  Doorkeeper doorkeeper(ranks.door, device.exchange != nullptr, parts.local, start_timeout,
                        events.log, clock);
  std::atomic<ControlChannel*> channel = nullptr;
  Leader leader(
      leader_config(options, model.pages, communicator.size(), pool_key, config.cost_model()),
      [&](const Order& order) {
        RoundReport report = worker.lead(order);
        parts.local.regrouped(report.generation);
        order_ended(report);
        return report;
      },
      parts.inbox,
      {.refuse = [&](int to, const auto& refused) { parts.local.refuse(to, refused); },
       .answer = [&](int to, const auto& verdicts) { parts.local.answer(to, verdicts); },
       .tell = [&](const FromPool& word) { channel.load()->tell(word); },
       .round = events.round,
       .leave_out = [&](int rank, const Status& reason) { parts.local.leave_out(rank, reason); },
       .open_slot = [&](int rank) { doorkeeper.open_slot(rank); },
       .take_in = [&](int rank) { parts.local.take_in(rank); },
       .accused = [&] { return parts.local.accused(); },
       .between_orders = [&] { return worker.copies_made() && pulls.serve(); }},
      clock);
  const Ticker ticker(clock, tick);
  lead_pool(
      options, events, parts.inbox,
      pool_card(options, model, transport, costs, device.exchange_name(communicator), workers),
      leader, channel, connect_control, in(kJoinTimeout));
}

}  // namespace tributary
