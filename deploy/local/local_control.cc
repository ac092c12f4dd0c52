#include "deploy/local/local_control.h"

#include <chrono>
#include <utility>

#include "core/base/error.h"
#include "deploy/service/client/tier_client.h"

namespace tributary {
namespace {

/// The leader answers between two rounds; a caller's own deadline is mostly shorter.
constexpr std::chrono::milliseconds kLeaderTimeout{60'000};
/// Nobody but this process knows its ids.
constexpr std::uint32_t kIncarnation = 1;

}  // namespace

/// The pool's side of its control plane.
class LocalControl::Channel final : public ControlChannel {
 public:
  explicit Channel(LocalControl& control) : control_(control) {}
  ~Channel() override { control_.disconnect(); }
  void tell(const FromPool& word) override { control_.tell(word); }

 private:
  LocalControl& control_;
};

LocalControl::LocalControl(Clock& clock)
    : clock_(clock),
      registry_(kIncarnation),
      admissions_(
          clock, registry_, {kLeaderTimeout},
          [this](const std::string& pool, ToPool message, Time deadline, PoolCalls::Done done) {
            call(pool, std::move(message), deadline, std::move(done));
          }),
      held_(clock, registry_, kLeaderTimeout,
            [this](const std::string& pool, ToPool message, Time deadline, PoolCalls::Done done) {
              call(pool, std::move(message), deadline, std::move(done));
            }) {}

std::unique_ptr<ControlChannel> LocalControl::connect(RegisterPool pool,
                                                      ControlLinkHandlers handlers) {
  handlers.describe(pool);
  auto channel = std::make_unique<Channel>(*this);
  const std::lock_guard lock(mutex_);
  name_ = pool.name;
  registry_.register_pool(std::move(pool), clock_.now());
  handlers_ = std::move(handlers);
  return channel;
}

void LocalControl::disconnect() {
  const std::lock_guard lock(mutex_);
  handlers_.reset();
  calls_.fail_pool(name_, {ErrorCode::kPoolLost, "the pool has ended"});
}

void LocalControl::terminate() {
  const std::lock_guard lock(mutex_);
  if (handlers_) handlers_->terminate();
}

void LocalControl::lose(const Status& reason) {
  const std::lock_guard lock(mutex_);
  lost_ = {ErrorCode::kPoolLost, reason.ok()
                                     ? "the pool is closed"
                                     : fmt::format("the pool has ended: {}", reason.message())};
  registry_.lose(name_, lost_.message(), clock_.now());
}

Heartbeat LocalControl::heartbeat() {
  const std::lock_guard lock(mutex_);
  check_pool();
  return handlers_->heartbeat();
}

void LocalControl::check_pool() const {
  lost_.throw_if_error();
  if (!handlers_) fail(ErrorCode::kPoolLost, "the pool has ended");
}

void LocalControl::call(const std::string& pool, ToPool message, Time deadline,
                        PoolCalls::Done done) {
  if (!handlers_) {
    done({0, ErrorCode::kPoolLost, "the pool has ended", {}});
    return;
  }
  const std::uint64_t request = calls_.open(pool, deadline, std::move(done));
  set_request(message, request);
  if (handlers_->request(std::move(message))) return;
  calls_.answer(pool, {request, ErrorCode::kUnavailable, "the pool's leader is behind", {}});
}

void LocalControl::tell(const FromPool& word) {
  const std::lock_guard lock(mutex_);
  if (const auto* reply = std::get_if<PoolReply>(&word)) calls_.answer(name_, *reply);
  if (const auto* ended = std::get_if<SequenceEnded>(&word)) {
    registry_.end_sequence(
        ended->id,
        ended->reason == "lease_expired" ? SequenceEnd::kLeaseExpired : SequenceEnd::kFreed,
        clock_.now());
  }
  if (const auto* joined = std::get_if<WorkerJoined>(&word)) {
    registry_.worker_joined(name_, joined->worker);
  }
}

template <typename Answer>
Answer LocalControl::wait(Deadline deadline,
                          const std::function<void(std::function<void(Answer)>)>& ask,
                          const std::function<void()>& give_up) {
  const auto answer = std::make_shared<std::optional<Answer>>();
  std::unique_lock lock(mutex_);
  check_pool();
  ask([this, answer](Answer given) {
    *answer = std::move(given);
    answered_.notify_all();
  });
  const auto ready = [&] { return answer->has_value(); };
  if (!clock_.wait_until(answered_, lock, deadline.when(), ready)) {
    if (give_up) give_up();
    fail(ErrorCode::kDeadlineExceeded, "the pool's leader has not answered in time");
  }
  return *std::move(*answer);
}

SequenceHandle LocalControl::admit(const AdmitRequest& wanted, Deadline deadline) {
  // Gets the same checks as a request over HTTP.
  const AdmitRequest request =
      parse_admit_request(to_json(wanted), wanted.idempotency_key, wanted.idempotency_secret);
  // A caller that has given up knows no sequence that could be freed.
  const auto given_up = std::make_shared<bool>(false);
  auto result = wait<AdmissionResult>(
      deadline,
      [&](const auto& done) {
        admissions_.admit(request, [this, done, given_up](const AdmissionResult& admitted) {
          if (*given_up && admitted.status.ok()) {
            held_.free(admitted.sequence.id, admitted.sequence.pool, [](const Status&) {});
          }
          done(admitted);
        });
      },
      [&] { *given_up = true; });
  if (result.status.code() == ErrorCode::kPoolFull) {
    throw PoolFullError(result.status.message(), std::chrono::seconds(result.retry_after_s));
  }
  result.status.throw_if_error();
  return std::move(result.sequence);
}

SequenceHandle LocalControl::query(SequenceId id, Deadline deadline) {
  auto [status, sequence] =
      wait<std::pair<Status, SequenceHandle>>(deadline, [&](const auto& done) {
        held_.query(id, [done](const Status& status, const SequenceHandle& found) {
          done({status, found});
        });
      });
  status.throw_if_error();
  return std::move(sequence);
}

void LocalControl::free(SequenceId id, const std::string& pool, Deadline deadline) {
  wait<Status>(deadline, [&](const auto& done) { held_.free(id, pool, done); }).throw_if_error();
}

std::vector<std::string> LocalControl::workers(Deadline /*deadline*/) {
  const std::lock_guard lock(mutex_);
  return worker_addresses(registry_);
}

}  // namespace tributary
