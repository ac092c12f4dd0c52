#include "comm/mesh/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "comm/wire/codec.h"
#include "core/base/awake_wait.h"
#include "core/base/look_for.h"

namespace tributary::mesh {
namespace {

/// The bound on one sender's communicators that do not exist here yet. Usually there is one: the
/// sender has regrouped first.
constexpr std::ptrdiff_t kMostEarly = 16;
constexpr int kMostRanks = 1024;
/// Between two tries to connect to a rank that rank 0 has named.
constexpr std::chrono::seconds kConnectPause{1};
/// How long the destructor waits for blocks that have not been sent.
constexpr std::chrono::seconds kLeave{1};

Status lost_status(int rank, const Status& why) {
  return {ErrorCode::kWorkerFailed, fmt::format("rank {} is lost: {}", rank, why.message())};
}

}  // namespace

Mesh::Mesh(MeshConfig config, const MakeTransport& make_transport, Clock& clock)
    : config_(std::move(config)),
      clock_(clock),
      links_(static_cast<std::size_t>(config_.ranks)),
      slots_(static_cast<std::size_t>(config_.ranks)) {
  for (int r = 0; r < ranks(); ++r) {
    if (r != rank()) awaited_.push_back(r);
  }
  TransportConfig transport = config_.transport;
  transport.secret_of = [this](std::uint64_t id) -> std::optional<Secret> {
    // Rank 0 also lets in ranks that it does not have, to tell them why they are refused.
    const int ranks = config_.rank == 0 ? kMostRanks : config_.ranks;
    const bool comes = std::cmp_less(config_.rank, id) && std::cmp_less(id, ranks);
    return comes ? std::optional(config_.secret) : std::nullopt;
  };
  transport.max_connections = 4 * config_.ranks;  // a rank may come again
  const std::lock_guard lock(mutex_);
  transport_ = make_transport(transport, *this);
}

/// The last call may have returned before its blocks were sent to the others, who still need them.
Mesh::~Mesh() {
  {
    std::unique_lock lock(mutex_);
    clock_.wait_until(changed_, lock, clock_.now() + kLeave, [this] { return leaving_ == 0; });
    ending_ = true;
  }
  transport_.reset();
}

Status Mesh::meet(Deadline deadline, std::uint64_t& visit) {
  std::string leader;
  if (rank() > 0) {
    if (Status found = status_of([&] { leader = config_.leader(); }); !found.ok()) return found;
  }
  std::unique_lock lock(mutex_);
  if (rank() > 0) connect(0, leader);
  while (true) {
    const Time look = std::min(clock_.now() + kConnectPause, deadline.when());
    clock_.wait_until(changed_, lock, look, [this] { return missing().empty() || !refused_.ok(); });
    if (!refused_.ok()) return refused_;
    if (missing().empty()) {
      met_ = true;
      visit = visit_;
      return {};
    }
    if (deadline.expired(clock_.now())) {
      return {ErrorCode::kDeadlineExceeded,
              fmt::format("rank {} of {}: ranks {} have not come", rank(), ranks(),
                          fmt::join(missing(), ", "))};
    }
    for (int r = 1; r < rank(); ++r) {
      if (!link(r).lost.ok()) connect(r, std::string(link(r).address));
    }
  }
}

std::vector<int> Mesh::missing() const {
  std::vector<int> missing;
  std::ranges::copy_if(awaited_, std::back_inserter(missing), [&](int r) { return !link(r).up; });
  return missing;
}

void Mesh::send(PeerId peer, const auto& message) {
  transport_->send(peer, {.type = static_cast<std::uint16_t>(message.kType),
                          .header = wire::encode(message),
                          .payload = {},
                          .sent = {}});
}

void Mesh::left() {
  const std::lock_guard lock(mutex_);
  if (--leaving_ == 0) notify();
}

void Mesh::connect(int to, const std::string& address) {
  const PeerId peer = transport_->connect(
      address, {.id = static_cast<std::uint64_t>(rank()), .secret = config_.secret});
  use(to, peer);
  link(to).address = address;
}

/// The latest connection with a rank is that of the latest process.
void Mesh::use(int with, PeerId peer) {
  Link& used = link(with);
  if (used.peer != 0 && used.lost.ok()) {
    ranks_of_.erase(used.peer);
    transport_->disconnect(used.peer);
  }
  used = {.peer = peer,
          .up = false,
          .lost = {},
          .address = {},
          .life = used.life + 1,
          .left_out = used.left_out};
  ranks_of_[peer] = with;
}

void Mesh::on_open(PeerId peer, const Proven& who) {
  const std::lock_guard lock(mutex_);
  if (ending_) return;
  if (const auto own = ranks_of_.find(peer); own != ranks_of_.end()) {
    if (own->second == 0) {  // which is to accept it
      send(peer,
           MeshJoin{.ranks = ranks(),
                    .address = config_.advertised ? config_.advertised(address()) : address()});
    } else {
      link(own->second).up = true;
    }
  } else if (rank() > 0) {
    use(static_cast<int>(who.id), peer);
    link(static_cast<int>(who.id)).up = true;
  } else {
    ranks_of_[peer] = static_cast<int>(who.id);  // it is to join
  }
  notify();
}

Status Mesh::judge(int from, const MeshJoin& join) const {
  if (join.version != kVersion) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("rank {} speaks version {} of the mesh, rank 0 version {}", from,
                        join.version, kVersion)};
  }
  if (join.ranks != ranks()) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("rank {} expects {} ranks, rank 0 {}", from, join.ranks, ranks())};
  }
  if (from >= ranks()) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("rank {}, rank 0 expects 0 .. {}", from, ranks() - 1)};
  }
  const bool open = slots_[static_cast<std::size_t>(from)].state == Slot::State::kOpen;
  if (link(from).up && !open) {
    return {ErrorCode::kAlreadyExists, fmt::format("rank {} has come before, and is there", from)};
  }
  if (met_ && !open) {
    return {ErrorCode::kUnavailable,
            fmt::format("rank {} was lost, and its slot is not open yet", from)};
  }
  return {};
}

void Mesh::join(PeerId peer, int from, const MeshJoin& join) {
  if (const Status judged = judge(from, join); !judged.ok()) {
    send(peer, Refused{.code = judged.code(), .message = judged.message()});
    transport_->disconnect(peer);
    lose(peer, judged);
    return;
  }
  use(from, peer);
  link(from).up = true;
  link(from).address = join.address;
  if (met_) {
    slot(from) = {.state = Slot::State::kArriving, .visit = ++visit_};
    newcomers_.push_back({{from, link(from).life}, visit_});
  }
  accept(from);
  introduce(from);
  if (config_.log && met_) {
    config_.log(fmt::format("another process has come for rank {}", from));
  } else if (config_.log) {
    config_.log(missing().empty() ? fmt::format("all {} ranks have come", ranks())
                                  : fmt::format("rank {} has come; missing: {}", from,
                                                fmt::join(missing(), ", ")));
  }
  notify();
}

void Mesh::accept(int newcomer) {
  Accepted accepted{.visit = slot(newcomer).visit, .members = {}};
  for (int r = 0; met_ && r < ranks(); ++r) {
    const bool there = r == 0 || (link(r).up && slot(r).state == Slot::State::kMember);
    if (there) accepted.members.push_back(r);
  }
  send(link(newcomer).peer, accepted);
}

void Mesh::introduce(int newcomer) {
  for (int r = 1; r < ranks(); ++r) {
    if (r == newcomer || !link(r).up) continue;
    const int low = std::min(r, newcomer);
    send(link(std::max(r, newcomer)).peer, Member{.rank = low, .address = link(low).address});
  }
}

void Mesh::open_slot(int rank, std::optional<std::uint64_t> visit) {
  const std::lock_guard lock(mutex_);
  if (visit && slot(rank).visit != *visit) return;
  slot(rank) = {.state = Slot::State::kOpen};
  for (int r = 1; r < ranks(); ++r) {  // who arrives need not wait for it
    if (slot(r).state == Slot::State::kArriving) accept(r);
  }
}

std::optional<Newcomer> Mesh::wait_newcomer() {
  std::unique_lock lock(mutex_);
  clock_.wait(changed_, lock, [this] { return closed_ || !newcomers_.empty(); });
  if (closed_) return std::nullopt;
  const Newcomer newcomer = newcomers_.front();
  newcomers_.pop_front();
  return newcomer;
}

void Mesh::close_door() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  notify();
}

Mesh::Membership Mesh::open(std::uint64_t id, std::span<const int> members,
                            std::optional<std::span<const MeshPeer>> before) {
  const std::lock_guard lock(mutex_);
  Membership membership;
  early_.erase(id);
  auto& group = groups_[id].group;
  if (group == nullptr) group = std::make_shared<MeshGroup>(ranks());
  membership.group = group;
  for (const MeshPeer& peer : before.value_or(std::span<const MeshPeer>())) {
    if (std::ranges::binary_search(members, peer.rank)) continue;
    link(peer.rank).left_out = link(peer.rank).life;
  }
  for (const int member : members) {
    if (member == rank()) continue;
    MeshPeer peer{member, link(member).life};
    if (before) {
      const auto known = std::ranges::find(*before, member, &MeshPeer::rank);
      if (known == before->end()) slot(member).state = Slot::State::kMember;  // a newcomer
      peer.life = known == before->end() ? 0 : known->life;
    }
    membership.others.push_back(peer);
  }
  return membership;
}

Status Mesh::await(std::span<MeshPeer> peers, std::string_view call, Deadline deadline,
                   std::vector<int>& late) {
  late.clear();
  std::unique_lock lock(mutex_);
  AwakeWait patience(deadline, clock_.now());
  while (true) {
    late.clear();
    for (MeshPeer& peer : peers) {
      const Link& now = link(peer.rank);
      const bool was_here = now.up || !now.lost.ok();  // and has been lost, maybe
      if (peer.life == 0 && was_here && now.life > now.left_out) peer.life = now.life;
      if (peer.life == 0) late.push_back(peer.rank);
    }
    for (const MeshPeer& peer : peers) {
      if (Status lost = gone(peer); !lost.ok()) {
        late = {peer.rank};
        return lost;
      }
    }
    if (late.empty()) return {};
    const Time now = clock_.now();
    if (patience.over(now)) {
      return {ErrorCode::kDeadlineExceeded,
              fmt::format("{}: no connection with ranks {} before the deadline", call,
                          fmt::join(late, ", "))};
    }
    clock_.wait_until(changed_, lock, patience.next_look(now));
  }
}

/// Why there is no connection any more with the process that a rank was; ok where there is one, or
/// the process is still to come.
Status Mesh::gone(const MeshPeer& peer) const {
  const Link& now = link(peer.rank);
  if (peer.life == 0) return {};
  if (now.life != peer.life) {
    return lost_status(peer.rank, {ErrorCode::kWorkerLost, "another process has come for it"});
  }
  return now.lost.ok() ? Status() : lost_status(peer.rank, now.lost);
}

std::shared_ptr<MeshGroup> Mesh::group(std::uint64_t id, int from) {
  const auto known = groups_.find(id);
  if (known != groups_.end()) return known->second.group;
  const auto same = [&](const auto& early) { return early.second == from; };
  if (std::ranges::count_if(early_, same) >= kMostEarly) {
    fail(ErrorCode::kMalformedInput, "rank {}: messages for {} communicators that are not known",
         from, kMostEarly + 1);
  }
  early_[id] = from;
  return groups_[id].group = std::make_shared<MeshGroup>(ranks());
}

void Mesh::close(std::uint64_t id, std::span<const MeshPeer> others) {
  const std::lock_guard lock(mutex_);
  Known closed;
  for (const MeshPeer& peer : others) {
    const bool ended = peer.life != 0 && !(link(peer.rank).up && link(peer.rank).life == peer.life);
    if (!ended) closed.senders.push_back(peer.rank);
  }
  if (closed.senders.empty()) {
    groups_.erase(id);
  } else {
    groups_[id] = std::move(closed);
  }
}

std::size_t Mesh::communicators() const {
  const std::lock_guard lock(mutex_);
  return groups_.size();
}

std::optional<Landing> Mesh::receive(int from, const MeshBlock& block, std::size_t bytes) {
  const std::shared_ptr<MeshGroup> to = group(block.group, from);
  if (to == nullptr || !to->ends(block.number).ok()) return std::nullopt;  // nobody waits for it
  const std::span<std::byte> place = to->place(from, block, bytes);
  if (bytes == 0) {
    notify();
    return std::nullopt;
  }
  return Landing{.pieces = {place},
                 .done = [this, to, from, number = block.number](const Status& status) {
                   if (!status.ok()) return;  // on_disconnect follows
                   const std::lock_guard lock(mutex_);
                   to->arrived(from, number);
                   notify();
                 }};
}

std::optional<Landing> Mesh::on_message(PeerId peer, std::uint16_t type,
                                        std::span<const std::byte> header,
                                        std::size_t payload_bytes) {
  const std::lock_guard lock(mutex_);
  const auto known = ranks_of_.find(peer);
  if (ending_ || known == ranks_of_.end()) return std::nullopt;
  const int from = known->second;
  std::optional<Landing> landing;
  const Status good = status_of([&] {
    if (static_cast<MessageType>(type) == MessageType::kBlock) {
      landing = receive(from, wire::decode<MeshBlock>(header), payload_bytes);
    } else if (payload_bytes == 0) {
      receive(peer, from, static_cast<MessageType>(type), header);
    } else {
      fail(ErrorCode::kMalformedInput, "message type {} with {} bytes", type, payload_bytes);
    }
  });
  if (!good.ok()) {
    transport_->disconnect(peer);
    lose(peer, good);
  }
  return landing;
}

void Mesh::receive(PeerId peer, int from, MessageType type, std::span<const std::byte> header) {
  if (type == MessageType::kJoin && rank() == 0) {
    join(peer, from, wire::decode<MeshJoin>(header));
  } else if (type == MessageType::kAccepted && from == 0) {
    const auto accepted = wire::decode<Accepted>(header);
    visit_ = accepted.visit;
    if (visit_ > 0) await_members(accepted.members);
    link(0).up = true;
    notify();
  } else if (type == MessageType::kRefused && from == 0) {
    const auto refused = wire::decode<Refused>(header);
    refused_ = {refused.code, refused.message};
    notify();
  } else if (type == MessageType::kMember && from == 0) {
    const auto member = wire::decode<Member>(header);
    if (member.rank < 1 || member.rank >= rank()) {
      fail(ErrorCode::kMalformedInput, "rank {} is to connect to rank {}", rank(), member.rank);
    }
    connect(member.rank, member.address);
  } else if (type == MessageType::kFailure) {
    const auto failure = wire::decode<Failure>(header);
    if (failure.code == ErrorCode::kOk) {
      fail(ErrorCode::kMalformedInput, "rank {} has failed without an error", from);
    }
    if (const auto ended = group(failure.group, from)) {
      ended->end({failure.code, failure.message}, failure.number, true);
    }
    notify();
  } else {
    fail(ErrorCode::kMalformedInput, "message type {} from rank {}", static_cast<int>(type), from);
  }
}

void Mesh::await_members(const std::vector<std::int32_t>& members) {
  awaited_.clear();
  for (const std::int32_t member : members) {
    if (member < 0 || member >= ranks() || member == rank()) {
      fail(ErrorCode::kMalformedInput, "rank {} of {} is to wait for rank {}", rank(), ranks(),
           member);
    }
    awaited_.push_back(member);
  }
}

void Mesh::on_disconnect(PeerId peer, const Status& reason) {
  const std::lock_guard lock(mutex_);
  lose(peer, reason);
}

void Mesh::lose(PeerId peer, const Status& reason) {
  const auto known = ranks_of_.find(peer);
  if (known == ranks_of_.end()) return;
  const int lost = known->second;
  ranks_of_.erase(known);
  if (lost >= ranks() || link(lost).peer != peer) return;
  link(lost).up = false;
  link(lost).lost = reason;
  if (slot(lost).state == Slot::State::kArriving) {  // another one may come
    slot(lost).state = Slot::State::kOpen;
    std::erase_if(newcomers_, [&](const Newcomer& n) { return n.process.rank == lost; });
    std::erase_if(early_, [&](const auto& early) {
      if (early.second != lost) return false;
      groups_.erase(early.first);
      return true;
    });
  }
  for (auto& [id, known_group] : groups_) std::erase(known_group.senders, lost);
  std::erase_if(groups_, [](const auto& one) {
    return one.second.group == nullptr && one.second.senders.empty();
  });
  if (lost == 0 && refused_.ok()) {
    // A rank 0 that cannot be reached may come, or come again.
    const bool final = reason.code() == ErrorCode::kPermissionDenied ||
                       reason.code() == ErrorCode::kInvalidArgument;
    refused_ = {final ? reason.code() : ErrorCode::kUnavailable, reason.message()};
  }
  notify();
}

void Mesh::on_listener_failed(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (refused_.ok()) refused_ = reason;  // who has met needs no listener
  notify();
}

void Mesh::notify() {
  events_.fetch_add(1, std::memory_order_release);
  changed_.notify_all();
}

void Mesh::send(int to, const MeshBlock& block, std::span<const std::byte> bytes,
                const std::shared_ptr<MeshGroup>& group, std::shared_ptr<const void> owner) {
  PeerId peer = 0;
  {
    const std::lock_guard lock(mutex_);
    peer = link(to).peer;
    ++leaving_;
  }
  OutgoingMessage message{.type = static_cast<std::uint16_t>(MeshBlock::kType),
                          .header = wire::encode(block),
                          .payload = {},
                          .sent = {}};
  if (!bytes.empty()) message.payload.push_back(bytes);
  message.sent = [this, to, group, owner = std::move(owner)](const Status& status) {
    // For other reasons the connection ends: on_disconnect has said so, or follows.
    if (status.code() == ErrorCode::kTooLarge) {
      interrupt(*group, {status.code(), fmt::format("block to rank {}: {}", to, status.message())});
    }
    left();
  };
  transport_->send(peer, std::move(message));
}

void Mesh::send(int to, const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (link(to).up) send(link(to).peer, failure);
}

Status Mesh::wait(MeshGroup& group, std::uint64_t number, std::span<const MeshPeer> peers,
                  std::string_view call, Deadline deadline, std::vector<int>& late) {
  late.clear();
  std::unique_lock lock(mutex_);
  AwakeWait patience(deadline, clock_.now());
  const auto awaited = [&](const MeshPeer& peer) { return !group.has(peer.rank, number); };
  bool looks = true;
  while (true) {
    const auto seen = events_.load(std::memory_order_acquire);
    if (std::ranges::none_of(peers, awaited)) return {};
    if (Status ended = group.ends(number); !ended.ok()) return ended;
    for (const MeshPeer& peer : peers) {
      if (!awaited(peer)) continue;
      if (Status lost = gone(peer); !lost.ok()) {
        late.push_back(peer.rank);
        return lost;
      }
    }
    const Time now = clock_.now();
    if (patience.over(now)) {
      for (const MeshPeer& peer : peers) {
        if (awaited(peer)) late.push_back(peer.rank);
      }
      return {ErrorCode::kDeadlineExceeded,
              fmt::format("{}: {} of {} other ranks arrived before the deadline; missing: {}", call,
                          peers.size() - late.size(), peers.size(), fmt::join(late, ", "))};
    }
    if (std::exchange(looks, false)) {
      lock.unlock();
      look_for([&] { return events_.load(std::memory_order_acquire) != seen; }, clock_.look());
      lock.lock();
    } else {
      clock_.wait_until(changed_, lock, patience.next_look(now));
    }
  }
}

void Mesh::release(MeshGroup& group, std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  group.release(number);
}

void Mesh::interrupt(MeshGroup& group, const Status& cause) {
  const std::lock_guard lock(mutex_);
  group.end(cause, 0);
  notify();
}

std::optional<std::uint64_t> Mesh::end(MeshGroup& group, const Status& cause) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = group.completed() + 1;
  group.end(cause, number);
  return group.told() ? std::nullopt : std::optional(number);
}

Status Mesh::failure(const MeshGroup& group, std::span<const MeshPeer> peers,
                     std::vector<int>& late) {
  late.clear();
  const std::lock_guard lock(mutex_);
  if (!group.cause().ok()) return group.cause();
  for (const MeshPeer& peer : peers) {
    if (Status lost = gone(peer); !lost.ok()) {
      late.push_back(peer.rank);
      return lost;
    }
  }
  return {};
}

}  // namespace tributary::mesh
