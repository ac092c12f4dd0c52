#include "deploy/service/client/tier_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "comm/wire/access_token.h"
#include "core/base/error.h"
#include "core/base/line_writer.h"
#include "deploy/service/client/control_call.h"
#include "deploy/service/client/known_workers.h"
#include "deploy/service/client/layer_call.h"
#include "deploy/service/client/lease_keeper.h"
#include "deploy/service/client/pause.h"
#include "deploy/service/client/pool_watch.h"
#include "deploy/service/client/row_pull.h"
#include "deploy/service/client/row_push.h"
#include "deploy/service/client/tier_api.h"
#include "deploy/service/client/worker_call.h"
#include "deploy/service/client/worker_connections.h"
#include "deploy/service/protocol/admission.h"
#include "deploy/service/protocol/sequence_json.h"
#include "deploy/service/transport/data_transport.h"

namespace tributary {
namespace {

const TierClientConfig& checked(const TierClientConfig& config) {
  if (config.timeout.count() <= 0 || config.max_in_flight_bytes == 0) {
    fail(ErrorCode::kInvalidArgument, "timeout {} ms, max_in_flight_bytes {}: expected 1 or more",
         config.timeout.count(), config.max_in_flight_bytes);
  }
  return config;
}

}  // namespace

class TierClient::Impl {
 public:
  Impl(const TierClientConfig& config, const MakeTransport& make_transport,
       std::shared_ptr<ControlPlane> control, Clock& clock)
      : config_(checked(config)),
        clock_(clock),
        control_(std::move(control)),
        connections_(
            {.listen = {},
             .busy_poll = config.busy_poll,
             .shared_memory = config.shared_memory,
             .max_header_bytes = wire::kMaxHeaderBytes,
             .tls = TransportTls{.certificate = config.tls_certificate,
                                 .key = config.tls_key,
                                 .authority = config.certificate_authority,
                                 .client_authority = {}}},
            make_transport, config.max_in_flight_bytes, clock,
            config.waiting
                ? config.waiting
                : [](const std::string&
                         text) { stderr_lines().write(fmt::format("tributary: {}", text)); }),
        watch_(*control_, connections_) {
    if (config.renew_leases) {
      leases_ = std::make_unique<LeaseKeeper>(connections_, clock);
    }
  }

  [[nodiscard]] Deadline deadline(const std::optional<Deadline>& given) const {
    return given ? *given : Deadline::after(clock_.now(), config_.timeout);
  }
  [[nodiscard]] Clock& clock() noexcept { return clock_; }
  [[nodiscard]] ControlPlane& control_plane() noexcept { return *control_; }
  [[nodiscard]] WorkerConnections& connections() noexcept { return connections_; }

  [[nodiscard]] SequenceHandle admit(AdmitRequest request, Deadline deadline) {
    if (request.idempotency_key.empty()) {
      request.idempotency_key = wire::token_text(wire::random_token());
    }
    if (request.idempotency_secret.empty()) request.idempotency_secret = idempotency_secret_;
    SequenceHandle sequence = control_->admit(request, deadline);
    if (leases_) leases_->keep(sequence);
    constexpr std::chrono::seconds kLimit{1};  // the sequence is there already
    workers_.learn(sequence, *control_, Deadline(std::min(deadline.when(), clock_.now() + kLimit)));
    return sequence;
  }

  void check_workers(const SequenceHandle& sequence, Deadline deadline) {
    workers_.check(sequence, *control_, deadline);
  }
  void take_over(const SequenceHandle& sequence) {
    connections_.check(home_address(sequence), sequence.id, sequence.token).throw_if_error();
    if (leases_) leases_->take_over(sequence);
  }
  void changed(const SequenceHandle& sequence) {
    if (leases_) leases_->update(sequence);
  }
  void forget(const SequenceHandle& sequence) {
    if (leases_) leases_->forget(sequence);
  }

 private:
  const TierClientConfig config_;
  Clock& clock_;
  std::shared_ptr<ControlPlane> control_;
  KnownWorkers workers_;
  WorkerConnections connections_;
  PoolWatch watch_;
  const std::string idempotency_secret_ = wire::token_text(wire::random_token());
  std::unique_ptr<LeaseKeeper> leases_;  // last: it uses the connections
};

TierClient::TierClient(const TierClientConfig& config)
    : TierClient(config, make_data_transport(config.transport)) {}

TierClient::TierClient(const TierClientConfig& config, const MakeTransport& make_transport)
    : TierClient(config, make_transport,
                 std::make_shared<TierApi>(
                     HttpClientConfig{.url = parse_url(config.url),
                                      .bearer_token = config.bearer_token,
                                      .certificate_authority = config.certificate_authority})) {}

TierClient::TierClient(const TierClientConfig& config, const MakeTransport& make_transport,
                       std::shared_ptr<ControlPlane> control)
    : TierClient(config, make_transport, std::move(control), steady_clock()) {}

TierClient::TierClient(const TierClientConfig& config, const MakeTransport& make_transport,
                       std::shared_ptr<ControlPlane> control, Clock& clock)
    : impl_(std::make_unique<Impl>(config, make_transport, std::move(control), clock)) {}

TierClient::~TierClient() = default;

SequenceHandle TierClient::admit(const AdmitRequest& request, std::optional<Deadline> deadline) {
  return impl_->admit(request, impl_->deadline(deadline));
}

SequenceHandle TierClient::admit_waiting(const AdmitRequest& request, Deadline deadline) {
  // A tier that does not answer cannot say when to try again.
  constexpr std::chrono::milliseconds kUnavailablePause{100};
  AdmitRequest again = request;
  if (again.idempotency_key.empty()) again.idempotency_key = wire::token_text(wire::random_token());
  while (true) {
    std::chrono::milliseconds wait = kUnavailablePause;
    try {
      return impl_->admit(again, deadline);
    } catch (const PoolFullError& full) {
      wait = std::max(full.retry_after(), std::chrono::milliseconds(1));
      if (impl_->clock().now() + wait >= deadline.when()) throw;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
      if (impl_->clock().now() + wait >= deadline.when()) throw;
    }
    pause(impl_->clock(), wait);
  }
}

void TierClient::adopt(const SequenceHandle& sequence, std::optional<Deadline> deadline) {
  impl_->check_workers(sequence, impl_->deadline(deadline));
  impl_->take_over(sequence);
}

void TierClient::adopt_trusted(const SequenceHandle& sequence) {
  impl_->take_over(sequence);
}

void TierClient::release(const SequenceHandle& sequence) {
  impl_->forget(sequence);
}

SequenceHandle TierClient::query(const SequenceHandle& sequence, std::optional<Deadline> deadline) {
  SequenceHandle now = impl_->control_plane().query(sequence.id, impl_->deadline(deadline));
  now.token = sequence.token;  // which it does not tell
  impl_->changed(now);
  return now;
}

void TierClient::wait_ready(std::span<const SequenceHandle* const> sequences,
                            std::optional<Deadline> deadline) {
  // Owners report to the leader at once: this takes one message, and milliseconds on a busy
  // machine.
  constexpr std::chrono::milliseconds kFirstPause{1};
  constexpr std::chrono::milliseconds kLongestPause{50};
  const Deadline end = impl_->deadline(deadline);
  std::vector<std::size_t> waiting(sequences.size());
  std::iota(waiting.begin(), waiting.end(), std::size_t{0});
  std::vector<std::string> missing(sequences.size());  // as it was said last
  std::vector<ItemFailure> failed;
  for (auto wait = kFirstPause;; wait = std::min(2 * wait, kLongestPause)) {
    const bool last = impl_->clock().now() + wait >= end.when();
    std::vector<ControlRequest> requests;
    requests.reserve(waiting.size());
    for (const std::size_t i : waiting) {
      requests.push_back({.op = wire::ControlOp::kReady, .sequence = sequences[i]});
    }
    const auto outcomes = control(impl_->connections(), requests, end);
    std::vector<std::size_t> still;
    for (std::size_t k = 0; k < waiting.size(); ++k) {
      const std::size_t i = waiting[k];
      const Status& status = outcomes[k].status;
      if (status.ok()) continue;
      // A worker that is behind, or has no room for a connection, may answer the next time.
      const bool later =
          status.code() == ErrorCode::kUnavailable || status.code() == ErrorCode::kPoolFull;
      if (later) missing[i] = status.message();
      if (later && !last) {
        still.push_back(i);
      } else if (later || (status.code() == ErrorCode::kDeadlineExceeded && !missing[i].empty())) {
        failed.push_back(
            {i,
             {ErrorCode::kDeadlineExceeded,
              fmt::format("sequence {} is not ready: {} (its pool's rows are {})", sequences[i]->id,
                          missing[i], row_format_name(sequences[i]->shape.row_format))}});
      } else {
        failed.push_back({i, status});
      }
    }
    waiting = std::move(still);
    if (waiting.empty()) break;
    pause(impl_->clock(), wait);
  }
  throw_if_failed(std::move(failed));
}

namespace {

/// Names the blocks behind the prompts. Returns the failures, by the sequences' places.
std::map<std::size_t, Status> name_blocks(WorkerConnections& connections,
                                          std::span<const SequenceHandle* const> sequences,
                                          std::span<const Prefix> prefixes, Deadline deadline) {
  std::map<std::size_t, Status> failed;
  std::vector<ControlRequest> requests;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    const Prefix& names = prefixes[i];
    if (names.keys.empty()) continue;
    const std::int64_t first = sequences[i]->prompt_tokens / std::max(names.block_tokens, 1);
    const std::int64_t count = names.blocks() - first;
    if (count <= 0) continue;
    if (std::cmp_greater(count, wire::BlockNames::Key::kMost)) {
      failed[i] = {ErrorCode::kInvalidArgument,
                   fmt::format("sequence {}: names of {} blocks behind its prompt, {} are the most",
                               sequences[i]->id, count, wire::BlockNames::Key::kMost)};
      continue;
    }
    requests.push_back({.op = wire::ControlOp::kName,
                        .sequence = sequences[i],
                        .length = first,
                        .alone = true,
                        .names = &names});
    places.push_back(i);
  }
  if (requests.empty()) return failed;
  const auto outcomes = control(connections, requests, deadline);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const ErrorCode code = outcomes[i].status.code();
    if (code == ErrorCode::kInvalidArgument || code == ErrorCode::kFailedPrecondition) {
      failed[places[i]] = outcomes[i].status;
    }
  }
  return failed;
}

}  // namespace

void TierClient::free(std::span<const SequenceHandle* const> sequences,
                      std::optional<Deadline> deadline, std::span<const Prefix> prefixes) {
  constexpr Duration kNone{0};
  if (!prefixes.empty() && prefixes.size() != sequences.size()) {
    fail(ErrorCode::kInvalidArgument, "prefixes of {} sequences, {} are freed", prefixes.size(),
         sequences.size());
  }
  const Deadline end = impl_->deadline(deadline);
  const Time begin = impl_->clock().now();
  // A pool that is gone has no blocks either: what else fails here says so below.
  const auto unnamed = name_blocks(impl_->connections(), sequences, prefixes,
                                   Deadline(begin + std::max(end.when() - begin, kNone) / 4));
  const Time now = impl_->clock().now();
  std::vector<ControlRequest> requests;
  requests.reserve(sequences.size());
  for (const SequenceHandle* sequence : sequences) {
    impl_->forget(*sequence);
    requests.push_back({.op = wire::ControlOp::kFree, .sequence = sequence});
  }
  // Half of the time is left to ask the control plane about a worker that does not answer.
  const auto outcomes = control(impl_->connections(), requests,
                                Deadline(now + std::max(end.when() - now, kNone) / 2));
  std::vector<ItemFailure> failed;
  Status control_plane;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (outcomes[i].status.ok() || outcomes[i].status.code() == ErrorCode::kNotFound) continue;
    // It would free whatever has the id. A handle that its worker refuses frees nothing: it may be
    // of a sequence that is gone with its pool.
    const bool refused = outcomes[i].status.code() == ErrorCode::kPermissionDenied;
    // A control plane that is down is asked once.
    if (control_plane.ok()) {
      control_plane = status_of([&] {
        if (refused) {
          static_cast<void>(impl_->control_plane().query(sequences[i]->id, end));
        } else {
          impl_->control_plane().free(sequences[i]->id, sequences[i]->pool, end);
        }
      });
      if (refused && control_plane.ok()) {
        failed.push_back({i, outcomes[i].status});
        continue;
      }
      // The sequence is gone with its pool, or the pool is cut off from the control plane and ends
      // the lease by itself.
      if (control_plane.code() == ErrorCode::kNotFound ||
          control_plane.code() == ErrorCode::kPoolLost) {
        control_plane = {};
      }
    }
    if (!control_plane.ok()) failed.push_back({i, control_plane});
  }
  for (const auto& [i, status] : unnamed) {
    if (std::ranges::find(failed, i, &ItemFailure::index) == failed.end()) {
      failed.push_back({i, status});
    }
  }
  throw_if_failed(std::move(failed));
}

void TierClient::extend(SequenceHandle& sequence, std::int64_t max_new_tokens,
                        std::optional<Deadline> deadline) {
  if (max_new_tokens < 0 || max_new_tokens > kMaxSequenceTokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} new tokens, expected 0 to {}", sequence.id,
         max_new_tokens, kMaxSequenceTokens);
  }
  const ControlRequest request{.op = wire::ControlOp::kExtend,
                               .sequence = &sequence,
                               .length = sequence.prompt_tokens + max_new_tokens};
  const auto outcomes =
      control(impl_->connections(), std::span(&request, 1), impl_->deadline(deadline));
  outcomes.front().status.throw_if_error();
  sequence.max_new_tokens = std::max(sequence.max_new_tokens, max_new_tokens);
  sequence.home = outcomes.front().home;
  impl_->changed(sequence);
}

void TierClient::push_rows(std::span<const PromptRows> parts, std::optional<Deadline> deadline) {
  tributary::push_rows(impl_->connections(), parts, impl_->deadline(deadline));
}

void TierClient::pull_rows(std::span<const PulledRows> parts, std::optional<Deadline> deadline) {
  tributary::pull_rows(impl_->connections(), parts, impl_->deadline(deadline));
}

void TierClient::attend(std::span<const LayerItem> items, int layer,
                        std::optional<Deadline> deadline) {
  run_layer(impl_->connections(), wire::LayerMode::kAttend, items, layer,
            impl_->deadline(deadline));
}

void TierClient::attend_unabsorbed(std::span<const LayerItem> items, int layer,
                                   std::optional<Deadline> deadline) {
  run_layer(impl_->connections(), wire::LayerMode::kAttendUnabsorbed, items, layer,
            impl_->deadline(deadline));
}

void TierClient::attend_projected(std::span<const LayerItem> items, int layer,
                                  std::optional<Deadline> deadline) {
  run_layer(impl_->connections(), wire::LayerMode::kAttendProjected, items, layer,
            impl_->deadline(deadline));
}

void TierClient::forward(std::span<const LayerItem> items, int layer,
                         std::optional<Deadline> deadline) {
  run_layer(impl_->connections(), wire::LayerMode::kForward, items, layer,
            impl_->deadline(deadline));
}

void TierClient::commit(std::span<SequenceHandle* const> sequences,
                        std::span<const std::int32_t> accepted, std::optional<Deadline> deadline) {
  if (sequences.size() != accepted.size()) {
    fail(ErrorCode::kInvalidArgument, "{} numbers of accepted tokens for {} sequences",
         accepted.size(), sequences.size());
  }
  std::vector<ControlRequest> requests;
  requests.reserve(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    requests.push_back({.op = wire::ControlOp::kCommit,
                        .sequence = sequences[i],
                        .length = sequences[i]->length + accepted[i]});
  }
  const auto outcomes = control(impl_->connections(), requests, impl_->deadline(deadline));
  std::vector<ItemFailure> failed;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (outcomes[i].status.ok()) {
      sequences[i]->length = outcomes[i].length;
      sequences[i]->home = outcomes[i].home;
    } else {
      failed.push_back({i, outcomes[i].status});
    }
  }
  throw_if_failed(std::move(failed));
}

void TierClient::truncate(SequenceHandle& sequence, std::int64_t length,
                          std::optional<Deadline> deadline) {
  const ControlRequest request{
      .op = wire::ControlOp::kTruncate, .sequence = &sequence, .length = length};
  const auto outcomes =
      control(impl_->connections(), std::span(&request, 1), impl_->deadline(deadline));
  outcomes.front().status.throw_if_error();
  sequence.epoch = outcomes.front().epoch;
  sequence.length = outcomes.front().length;
  sequence.home = outcomes.front().home;
  impl_->changed(sequence);
}

}  // namespace tributary
