#include "deploy/client/tier_client.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "comm/ucx/ucx_transport.h"
#include "comm/wire/access_token.h"
#include "core/base/error.h"
#include "deploy/client/control_call.h"
#include "deploy/client/layer_call.h"
#include "deploy/client/lease_keeper.h"
#include "deploy/client/row_push.h"
#include "deploy/client/tier_api.h"
#include "deploy/client/worker_connections.h"
#include "deploy/tier/admission_answer.h"

namespace tributary {
namespace {

SequenceHandle handle_of(const AdmissionAnswer& answer) {
  const SequenceInfo& sequence = answer.sequence;
  return {.id = sequence.id,
          .epoch = sequence.epoch,
          .token = sequence.token,
          .pool = answer.pool,
          .home = sequence.home,
          .prompt_tokens = sequence.prompt_tokens,
          .max_new_tokens = sequence.max_new_tokens,
          .length = sequence.length,
          .extents = sequence.extents,
          .addresses = answer.addresses,
          .shape = answer.shape,
          .lease_ms = answer.lease_ms};
}

const TierClientConfig& checked(const TierClientConfig& config) {
  if (config.timeout.count() <= 0 || config.max_in_flight_bytes == 0) {
    fail(ErrorCode::kInvalidArgument, "timeout {} ms, max_in_flight_bytes {}: expected 1 or more",
         config.timeout.count(), config.max_in_flight_bytes);
  }
  return config;
}

}  // namespace

std::string to_json(const SequenceHandle& sequence) {
  AdmissionAnswer answer;
  answer.sequence.id = sequence.id;
  answer.sequence.epoch = sequence.epoch;
  answer.sequence.state = SequenceState::kReady;
  answer.sequence.home = sequence.home;
  answer.sequence.prompt_tokens = sequence.prompt_tokens;
  answer.sequence.max_new_tokens = sequence.max_new_tokens;
  answer.sequence.length = sequence.length;
  answer.sequence.extents = sequence.extents;
  answer.sequence.token = sequence.token;
  answer.pool = sequence.pool;
  answer.lease_ms = sequence.lease_ms;
  answer.addresses = sequence.addresses;
  answer.shape = sequence.shape;
  return to_json(answer);
}

SequenceHandle parse_sequence_handle(std::string_view text) {
  return handle_of(parse_admission_answer(text));
}

class TierClient::Impl {
 public:
  Impl(const TierClientConfig& config, const MakeTransport& make_transport)
      : config_(checked(config)),
        api_({.url = parse_url(config.url),
              .bearer_token = config.bearer_token,
              .certificate_authority = config.certificate_authority}),
        connections_({.listen = {},
                      .busy_poll = config.busy_poll,
                      .shared_memory = config.shared_memory,
                      .max_header_bytes = wire::kMaxHeaderBytes},
                     make_transport, config.max_in_flight_bytes) {
    if (config.renew_leases) leases_ = std::make_unique<LeaseKeeper>(connections_);
  }

  [[nodiscard]] Deadline deadline(const std::optional<Deadline>& given) const {
    return given ? *given : Deadline::after(config_.timeout);
  }
  [[nodiscard]] TierApi& api() noexcept { return api_; }
  [[nodiscard]] WorkerConnections& connections() noexcept { return connections_; }

  [[nodiscard]] SequenceHandle admit(const AdmitOptions& options, Deadline deadline) {
    std::chrono::milliseconds retry_after{0};
    try {
      SequenceHandle sequence =
          handle_of(api_.admit({.prompt_tokens = options.prompt_tokens,
                                .max_new_tokens = options.max_new_tokens,
                                .spread = options.spread,
                                .idempotency_key = options.idempotency_key.empty()
                                                       ? wire::token_text(wire::random_token())
                                                       : options.idempotency_key},
                               deadline, retry_after));
      keep(sequence);
      return sequence;
    } catch (const Error&) {
      retry_after_ = retry_after;
      throw;
    }
  }
  [[nodiscard]] std::chrono::milliseconds retry_after() const { return retry_after_; }

  void keep(const SequenceHandle& sequence) {
    if (leases_) leases_->keep(sequence);
  }
  void forget(SequenceId id) {
    if (leases_) leases_->forget(id);
  }
  /// Whether the sequence's home still holds it, as it says itself.
  [[nodiscard]] bool home_holds(const SequenceHandle& sequence, Deadline deadline) {
    const ControlRequest renewal{.op = wire::ControlOp::kRenew, .sequence = &sequence};
    return control(connections_, std::span(&renewal, 1), deadline).front().status.ok();
  }

 private:
  const TierClientConfig config_;
  TierApi api_;
  std::atomic<std::chrono::milliseconds> retry_after_{std::chrono::milliseconds(0)};
  WorkerConnections connections_;
  std::unique_ptr<LeaseKeeper> leases_;  // last: it uses the connections
};

TierClient::TierClient(const TierClientConfig& config)
    : TierClient(config, [](const TransportConfig& transport, TransportHandler& handler) {
        return make_ucx_transport(transport, handler);
      }) {}

TierClient::TierClient(const TierClientConfig& config, const MakeTransport& make_transport)
    : impl_(std::make_unique<Impl>(config, make_transport)) {}

TierClient::~TierClient() = default;

SequenceHandle TierClient::admit(const AdmitOptions& options, std::optional<Deadline> deadline) {
  return impl_->admit(options, impl_->deadline(deadline));
}

std::chrono::milliseconds TierClient::retry_after() const {
  return impl_->retry_after();
}

SequenceHandle TierClient::admit_waiting(const AdmitOptions& options, Deadline deadline) {
  // Where nobody answers there is nobody to say when to come back.
  constexpr std::chrono::milliseconds kUnavailablePause{100};
  AdmitOptions again = options;
  if (again.idempotency_key.empty()) again.idempotency_key = wire::token_text(wire::random_token());
  while (true) {
    std::chrono::milliseconds pause = kUnavailablePause;
    try {
      return impl_->admit(again, deadline);
    } catch (const Error& error) {
      const bool full = error.code() == ErrorCode::kPoolFull;
      if (!full && error.code() != ErrorCode::kUnavailable) throw;
      if (full) pause = std::max(retry_after(), std::chrono::milliseconds(1));
      if (Deadline::Clock::now() + pause >= deadline.when()) throw;
    }
    std::this_thread::sleep_for(pause);
  }
}

void TierClient::adopt(const SequenceHandle& sequence) {
  impl_->keep(sequence);
}

SequenceStatus TierClient::query(const SequenceHandle& sequence, std::optional<Deadline> deadline) {
  const AdmissionAnswer answer = impl_->api().query(sequence.id, impl_->deadline(deadline));
  return {answer.sequence.state, answer.sequence.length, answer.sequence.missing};
}

void TierClient::wait_ready(const SequenceHandle& sequence, std::optional<Deadline> deadline) {
  // Owners tell the leader at once: it is a matter of one message, and of milliseconds on a busy
  // machine.
  constexpr std::chrono::milliseconds kFirstPause{1};
  constexpr std::chrono::milliseconds kLongestPause{50};
  const Deadline end = impl_->deadline(deadline);
  std::string missing;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    try {
      const SequenceStatus status = query(sequence, end);
      if (status.state != SequenceState::kFilling) return;
      missing = status.missing;
    } catch (const Error& error) {
      // A control plane that was down or cut off takes pools for lost until they register again.
      const bool lost_sight =
          error.code() == ErrorCode::kPoolLost || error.code() == ErrorCode::kUnavailable;
      if (!lost_sight || !impl_->home_holds(sequence, end)) throw;
      missing = error.what();
    }
    if (Deadline::Clock::now() + pause >= end.when()) {
      fail(ErrorCode::kDeadlineExceeded, "sequence {} is not ready: {}", sequence.id, missing);
    }
    std::this_thread::sleep_for(pause);
  }
}

void TierClient::free(const SequenceHandle& sequence, std::optional<Deadline> deadline) {
  impl_->forget(sequence.id);
  try {
    impl_->api().free(sequence.id, impl_->deadline(deadline));
  } catch (const Error& error) {
    // Gone with its pool; or that is cut off from the control plane, and ends its lease by itself.
    if (error.code() != ErrorCode::kNotFound && error.code() != ErrorCode::kPoolLost) throw;
  }
}

void TierClient::push_rows(const SequenceHandle& sequence, int layer, std::int64_t begin,
                           std::span<const std::byte> rows, std::optional<Deadline> deadline) {
  tributary::push_rows(impl_->connections(), sequence, layer, begin, rows,
                       impl_->deadline(deadline));
}

void TierClient::attend(std::span<const LayerItem> items, int layer,
                        std::optional<Deadline> deadline) {
  run_layer(impl_->connections(), wire::RoundMode::kAttend, items, layer,
            impl_->deadline(deadline));
}

void TierClient::attend_projected(std::span<const LayerItem> items, int layer,
                                  std::optional<Deadline> deadline) {
  run_layer(impl_->connections(), wire::RoundMode::kAttendProjected, items, layer,
            impl_->deadline(deadline));
}

void TierClient::forward(std::span<const LayerItem> items, int layer,
                         std::optional<Deadline> deadline) {
  run_layer(impl_->connections(), wire::RoundMode::kForward, items, layer,
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
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (outcomes[i].status.ok()) sequences[i]->length = outcomes[i].length;
  }
  for (const ControlOutcome& outcome : outcomes) outcome.status.throw_if_error();
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
  impl_->keep(sequence);
}

}  // namespace tributary
