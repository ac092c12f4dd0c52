#include "deploy/service/control/pool_calls.h"

#include <utility>
#include <variant>

namespace tributary {

void set_request(ToPool& message, std::uint64_t request) {
  std::visit(
      [request](auto& question) {
        if constexpr (requires { question.request; }) question.request = request;
      },
      message);
}

std::uint64_t PoolCalls::open(const std::string& pool, Time deadline, Done done) {
  calls_.emplace(next_, Call{pool, deadline, std::move(done)});
  return next_++;
}

bool PoolCalls::answer(const std::string& pool, const PoolReply& reply) {
  const auto found = calls_.find(reply.request);
  if (found == calls_.end() || found->second.pool != pool) return false;
  const Call call = std::move(found->second);
  calls_.erase(found);
  call.done(reply);
  return true;
}

template <typename Matches>
void PoolCalls::end_all(const Matches& matches,
                        const std::function<PoolReply(const Call&)>& reply) {
  std::vector<Call> ended;
  for (auto call = calls_.begin(); call != calls_.end();) {
    if (matches(call->second)) {
      ended.push_back(std::move(call->second));
      call = calls_.erase(call);
    } else {
      ++call;
    }
  }
  for (const Call& call : ended) call.done(reply(call));
}

void PoolCalls::fail_pool(const std::string& pool, const Status& status) {
  end_all([&](const Call& call) { return call.pool == pool; },
          [&](const Call&) {
            return PoolReply{0, status.code(), status.message(), {}};
          });
}

void PoolCalls::expire(Time now) {
  end_all([&](const Call& call) { return call.deadline <= now; },
          [](const Call& call) {
            return PoolReply{0,
                             ErrorCode::kDeadlineExceeded,
                             fmt::format("pool {} did not answer in time", call.pool),
                             {}};
          });
}

}  // namespace tributary
