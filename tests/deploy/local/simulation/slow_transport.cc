#include "tests/deploy/local/simulation/slow_transport.h"

#include <algorithm>

namespace tributary::test {
namespace {

const Status kReset(ErrorCode::kUnavailable, "the connection was reset");

}  // namespace

SlowTransport::SlowTransport(SimulatedNetwork& network, int process, const TransportConfig& config,
                             TransportHandler& handler)
    : network_(network), process_(process), handler_(handler) {
  network_.clock_.as_process(SimulatedNetwork::system_of(process), [&] {
    inner_ = make_local_transport(network_.wires_, config, *this);
  });
  thread_.emplace(network_.clock_, [this] { run(); });
  network_.transports_[process_].push_back(this);
}

SlowTransport::~SlowTransport() {
  std::erase(network_.transports_[process_], this);
  std::multimap<Time, Leaving> left;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    left.swap(leaving_);
  }
  changed_.notify_all();
  thread_->join();
  for (auto& [due, leaving] : left) {
    if (leaving.message && leaving.message->sent) leaving.message->sent(kReset);
  }
  inner_.reset();
}

PeerId SlowTransport::connect(const std::string& address, const Introduction& introduction) {
  const bool nobody = network_.nobody_listens_.contains(address);
  const PeerId peer = inner_->connect(nobody ? "nobody:1" : address, introduction);
  const std::lock_guard lock(mutex_);
  peers_[peer];
  return peer;
}

void SlowTransport::send(PeerId peer, OutgoingMessage message) {
  {
    const std::lock_guard lock(mutex_);
    Peer& to = peers_[peer];
    const Time due = std::max(network_.clock_.now() + network_.events_.delay(), to.in_order);
    if (message.payload_bytes() == 0) to.in_order = due;
    to.all = std::max(to.all, due);
    leaving_.emplace(due, Leaving{peer, std::move(message)});
  }
  changed_.notify_all();
}

void SlowTransport::disconnect(PeerId peer) {
  {
    const std::lock_guard lock(mutex_);
    Peer& to = peers_[peer];
    to.open = false;
    leaving_.emplace(std::max(network_.clock_.now(), to.all), Leaving{peer, {}});
  }
  changed_.notify_all();
}

bool SlowTransport::cut(std::size_t number) {
  PeerId peer = 0;
  bool told = false;
  {
    const std::lock_guard lock(mutex_);
    std::vector<PeerId> open;
    for (const auto& [id, one] : peers_) {
      if (one.open && !one.cut) open.push_back(id);
    }
    if (open.empty()) return false;
    peer = open[number % open.size()];
    peers_[peer].cut = true;
    told = peers_[peer].with_inner == 0;
  }
  inner_->disconnect(peer);
  if (told) end(peer, kReset);
  return true;
}

void SlowTransport::kill() {
  std::vector<PeerId> all;
  {
    const std::lock_guard lock(mutex_);
    killed_ = true;
    for (const auto& [id, one] : peers_) all.push_back(id);
  }
  for (const PeerId peer : all) inner_->disconnect(peer);
}

void SlowTransport::on_open(PeerId peer, const Proven& who) {
  {
    const std::lock_guard lock(mutex_);
    const Peer& one = peers_[peer];
    if (!killed_ && (!one.open || one.cut)) return;
  }
  if (killed_) return inner_->disconnect(peer);
  handler_.on_open(peer, who);
}

std::optional<Landing> SlowTransport::on_message(PeerId peer, std::uint16_t type,
                                                 std::span<const std::byte> header,
                                                 std::size_t payload_bytes) {
  {
    const std::lock_guard lock(mutex_);
    const Peer& one = peers_[peer];
    if (killed_ || !one.open || one.cut) return {};
  }
  network_.events_.header(process_, type, header);
  std::optional<Landing> landing = handler_.on_message(peer, type, header, payload_bytes);
  if (!landing || payload_bytes == 0) return landing;
  landing->done = [this, type, header = std::vector(header.begin(), header.end()),
                   pieces = landing->pieces, done = landing->done](const Status& status) {
    if (killed_) return;
    if (status.ok()) {
      std::vector<std::byte> payload;
      for (const auto& piece : pieces) payload.insert(payload.end(), piece.begin(), piece.end());
      network_.events_.payload(process_, type, header, payload);
    }
    if (done) done(status);
  };
  return landing;
}

void SlowTransport::on_disconnect(PeerId peer, const Status& reason) {
  end(peer, reason);
}

void SlowTransport::on_limit(TransportLimit limit, const Status& what) {
  if (!killed_) handler_.on_limit(limit, what);
}

void SlowTransport::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (leaving_.empty()) {
      network_.clock_.wait(changed_, lock, [this] { return stop_ || !leaving_.empty(); });
      continue;
    }
    if (const Time due = leaving_.begin()->first; network_.clock_.now() < due) {
      network_.clock_.wait_until(changed_, lock, due);
      continue;
    }
    Leaving leaving = std::move(leaving_.extract(leaving_.begin()).mapped());
    if (leaving.message) ++peers_[leaving.peer].with_inner;
    lock.unlock();
    let_leave(std::move(leaving));
    lock.lock();
  }
}

void SlowTransport::let_leave(Leaving leaving) {
  if (!leaving.message) return inner_->disconnect(leaving.peer);
  leaving.message->sent = [this, peer = leaving.peer, sent = std::move(leaving.message->sent)](
                              const Status& status) { was_sent(peer, sent, status); };
  inner_->send(leaving.peer, *std::move(leaving.message));
}

void SlowTransport::was_sent(PeerId peer, const Sent& sent, const Status& status) {
  if (killed_) return;
  if (sent) sent(status);
  bool told = false;
  {
    const std::lock_guard lock(mutex_);
    Peer& one = peers_[peer];
    told = --one.with_inner == 0 && one.cut;
  }
  if (told) end(peer, kReset);
}

void SlowTransport::end(PeerId peer, const Status& reason) {
  std::vector<Leaving> lost;
  {
    const std::lock_guard lock(mutex_);
    Peer& one = peers_[peer];
    if (killed_ || !one.open) return;
    one.open = false;
    for (auto next = leaving_.begin(); next != leaving_.end();) {
      const bool its = next->second.peer == peer;
      if (its) lost.push_back(std::move(next->second));
      next = its ? leaving_.erase(next) : std::next(next);
    }
  }
  for (const Leaving& one : lost) {
    if (one.message && one.message->sent) one.message->sent(reason);
  }
  handler_.on_disconnect(peer, reason);
}

}  // namespace tributary::test
