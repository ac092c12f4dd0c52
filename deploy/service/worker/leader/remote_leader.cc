#include "deploy/service/worker/leader/remote_leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "deploy/service/protocol/dispatch_message.h"

namespace tributary {
namespace {

/// A waiting rank checks this often whether another one has failed.
constexpr auto kLookEvery = std::chrono::milliseconds(100);

}  // namespace

RemoteLeader::RemoteLeader(int rank, const wire::Token& pool_key, Peers& peers, HomeQueue& queue,
                           Relays& relays, Clock& clock)
    : rank_(rank),
      token_(wire::access_token(pool_key, wire::kPoolItself)),
      peers_(peers),
      queue_(queue),
      relays_(relays),
      clock_(clock) {}

void RemoteLeader::connect(const std::string& address, const wire::Join& own) {
  leader_ =
      peers_.connect_leader(address, {.id = wire::kPoolItself, .secret = token_}, clock_.now());
  peers_.send(leader_, own);
}

Status RemoteLeader::send(std::span<const std::byte> /*order*/, Deadline /*deadline*/) {
  return {ErrorCode::kFailedPrecondition, "worker 0 alone sends orders"};
}

Status RemoteLeader::wait(std::vector<std::byte>& order, Deadline deadline,
                          const std::function<Status()>& look) {
  AwakeWait patience(deadline, clock_.now());
  std::unique_lock lock(mutex_);
  while (true) {
    const Time now = clock_.now();
    const bool over = patience.over(now);
    changed_.wait_until(clock_, lock, std::min(patience.next_look(now), now + kLookEvery), [this] {
      return orders_.contains(next_order_) || left_ || !lost_.ok() || woken_;
    });
    if (const auto next = orders_.find(next_order_); next != orders_.end()) {
      order = std::move(next->second);
      orders_.erase(next);
      ++next_order_;
      return {};
    }
    if (left_) {
      order.clear();
      return {};
    }
    if (!lost_.ok()) return lost_;
    woken_ = false;
    lock.unlock();
    Status others = look();
    lock.lock();
    if (!others.ok()) return others;
    if (over && !orders_.contains(next_order_)) {
      return {ErrorCode::kDeadlineExceeded, "worker 0, the leader, has been silent for too long"};
    }
  }
}

void RemoteLeader::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

Landing RemoteLeader::receive(const wire::PoolOrder& order, std::size_t payload_bytes) {
  if (payload_bytes == 0 || payload_bytes > kMaxOrderBytes) {
    fail(ErrorCode::kMalformedInput, "an order of {} bytes, expected 1 .. {}", payload_bytes,
         kMaxOrderBytes);
  }
  {
    const std::lock_guard lock(mutex_);
    if (order.number < next_order_ || order.number - next_order_ >= kMaxAhead) {
      fail(ErrorCode::kMalformedInput, "order {}, while order {} is waited for", order.number,
           next_order_);
    }
  }
  const auto bytes = std::make_shared<std::vector<std::byte>>(payload_bytes);
  return {{std::span(*bytes)}, [this, bytes, number = order.number](const Status& status) {
            if (!status.ok()) return;  // the leader is gone
            {
              const std::lock_guard lock(mutex_);
              orders_.insert_or_assign(number, std::move(*bytes));
            }
            changed_.notify_all();
          }};
}

void RemoteLeader::join(PeerId /*peer*/, const wire::Join& join, Time /*now*/) {
  fail(ErrorCode::kMalformedInput, "a Join of rank {} at worker {}, which does not lead", join.rank,
       rank_);
}

std::optional<Landing> RemoteLeader::receive(const Peers::Peer& /*from*/, wire::MessageType type,
                                             std::span<const std::byte> header,
                                             std::size_t payload_bytes) {
  struct Words {
    RemoteLeader& port;
    std::size_t payload_bytes;
    std::optional<Landing>& landing;
    void operator()(const wire::PoolOrder& order) const {
      landing = port.receive(order, payload_bytes);
    }
    void operator()(const wire::Left& left) const { port.left(left.outcome); }
    void operator()(const wire::ItemsRefused& refused) const { port.queue_.refuse(refused); }
    void operator()(const wire::ControlRelayReply& verdicts) const {
      port.relays_.answer(verdicts);
    }
  };
  std::optional<Landing> landing;
  if (!wire::dispatch<wire::PoolOrder, wire::Left, wire::ItemsRefused, wire::ControlRelayReply>(
          type, header, Words{*this, payload_bytes, landing})) {
    fail(ErrorCode::kMalformedInput, "message type {} from the leader", static_cast<int>(type));
  }
  return landing;
}

void RemoteLeader::left(const wire::Outcome& outcome) {
  {
    const std::lock_guard lock(mutex_);
    if (outcome.ok()) {
      left_ = true;
    } else if (lost_.ok()) {
      lost_ = {ErrorCode::kPoolLost,
               fmt::format("the pool goes on without worker {}: {}", rank_, outcome.message)};
    }
  }
  changed_.notify_all();
}

void RemoteLeader::lost(const Peers::Peer& /*peer*/, const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (lost_.ok())
      lost_ = {ErrorCode::kPoolLost,
               fmt::format("worker 0, the leader, is gone: {}", reason.message())};
  }
  changed_.notify_all();
}

}  // namespace tributary
