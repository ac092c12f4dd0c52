#include "deploy/worker/data_plane.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"

namespace tributary {

using wire::MessageType;

Status compare_shapes(const wire::Shape& client, const wire::Shape& pool) {
  Status status;
  const auto compare = [&](std::string_view field, const auto& mine, const auto& theirs) {
    if (!status.ok() || mine == theirs) return;
    status = {ErrorCode::kInvalidArgument,
              fmt::format("{}: the client says {}, the pool has {}", field, mine, theirs)};
  };
  compare("heads", client.heads, pool.heads);
  compare("kv_lora_rank", client.kv_lora_rank, pool.kv_lora_rank);
  compare("qk_rope_head_dim", client.qk_rope_head_dim, pool.qk_rope_head_dim);
  compare("v_head_dim", client.v_head_dim, pool.v_head_dim);
  compare("hidden_size", client.hidden_size, pool.hidden_size);
  compare("layers", client.layers, pool.layers);
  compare("leaf_tokens", client.leaf_tokens, pool.leaf_tokens);
  compare("row type", dtype_name(static_cast<DType>(client.row_dtype)),
          dtype_name(static_cast<DType>(pool.row_dtype)));
  compare("query type", dtype_name(static_cast<DType>(client.query_dtype)),
          dtype_name(static_cast<DType>(pool.query_dtype)));
  compare("softmax_scale", client.softmax_scale, pool.softmax_scale);
  return status;
}

DataPlane::DataPlane(const DataPlaneConfig& config, const PoolModel& model, IngestTable& table,
                     Backend& backend, Cache& cache, HomeQueue& queue, LeaderInbox* inbox,
                     const MakeTransport& make_transport)
    : config_(config),
      model_(model),
      queue_(queue),
      inbox_(inbox),
      rows_(config.rank, table, backend, cache, config.max_staged_bytes,
            {.reply =
                 [this](PeerId peer, const wire::RowsReply& reply) {
                   send(peer, MessageType::kRowsReply, encode(reply));
                 },
             .progress = [this](const wire::Progress& progress) { post_progress(progress); }}),
      access_(config.pool_key),
      workers_(static_cast<std::size_t>(config.workers)) {
  // Messages that come before the transport's address is known here wait in peer_of().
  const std::lock_guard lock(mutex_);
  transport_ = make_transport(config.transport, *this);
}

DataPlane::~DataPlane() {
  // What the transport still calls finds that nothing can be sent any more.
  stopping_ = true;
  transport_.reset();
}

void DataPlane::send(PeerId peer, MessageType type, std::vector<std::byte> header) {
  if (stopping_) return;
  transport_->send(peer, {.type = static_cast<std::uint16_t>(type),
                          .header = std::move(header),
                          .payload = {},
                          .sent = {}});
}

DataPlane::Peer DataPlane::peer_of(PeerId peer) {
  const std::lock_guard lock(mutex_);
  const auto [found, added] = peers_.try_emplace(peer);
  if (added) found->second.since = Deadline::Clock::now();
  return found->second;
}

void DataPlane::set_peer(PeerId peer, Peer state) {
  const std::lock_guard lock(mutex_);
  state.since = Deadline::Clock::now();
  peers_.insert_or_assign(peer, state);
}

std::optional<Landing> DataPlane::on_message(PeerId peer, std::uint16_t type,
                                             std::span<const std::byte> header,
                                             std::size_t payload_bytes) {
  const Peer from = peer_of(peer);
  const auto what = static_cast<MessageType>(type);
  std::optional<Landing> landing;
  const Status status = status_of([&] {
    switch (from.state) {
      case State::kRefused:
        return;
      case State::kClient:
        landing = from_client(peer, what, header, payload_bytes);
        return;
      case State::kLeader:
        from_leader(what, header);
        return;
      case State::kWorker:
        from_worker(from.rank, what, header);
        return;
      case State::kNew:
        break;
    }
    if (what == MessageType::kHello) {
      hello(peer, wire::decode_hello(header));
    } else if (what == MessageType::kJoin && inbox_ != nullptr) {
      join(peer, wire::decode_join(header));
    } else {
      fail(ErrorCode::kMalformedInput, "message type {} before Hello", type);
    }
  });
  if (!status.ok()) {
    rows_.count_malformed();
    on_disconnect(peer, status);
    transport_->disconnect(peer);
  }
  return landing;
}

void DataPlane::on_disconnect(PeerId peer, const Status& reason) {
  Peer gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = peers_.find(peer);
    if (found == peers_.end()) return;
    gone = found->second;
    peers_.erase(found);
    if (gone.state == State::kLeader) {
      leader_lost_ = {ErrorCode::kWorkerFailed,
                      fmt::format("worker 0, the leader, is gone: {}", reason.message())};
    }
  }
  changed_.notify_all();
  if (gone.state == State::kWorker && inbox_ != nullptr) {
    inbox_->post_lost({ErrorCode::kWorkerFailed,
                       fmt::format("worker {} is gone: {}", gone.rank, reason.message())});
  }
}

std::optional<Landing> DataPlane::from_client(PeerId peer, MessageType type,
                                              std::span<const std::byte> header,
                                              std::size_t payload_bytes) {
  switch (type) {
    case MessageType::kRows: {
      const wire::Rows rows = wire::decode_rows(header);
      return rows_.receive(peer, rows, access_.allowed(rows.sequence_id, rows.token),
                           payload_bytes);
    }
    case MessageType::kRound:
      return receive_round(peer, wire::decode_round(header), payload_bytes);
    case MessageType::kControl:
      receive_control(peer, wire::decode_control(header));
      return {};
    default:
      fail(ErrorCode::kMalformedInput, "message type {} from a client", static_cast<int>(type));
  }
}

void DataPlane::from_worker(int rank, MessageType type, std::span<const std::byte> header) {
  switch (type) {
    case MessageType::kItems: {
      wire::Items items = wire::decode_items(header);
      wire::ItemsRefused refused{.ticket = items.ticket, .items = {}, .outcome = {}};
      for (std::uint32_t i = 0; i < items.items.size(); ++i) refused.items.push_back(i);
      if (inbox_->post_items(rank, std::move(items))) return;
      refused.outcome = {ErrorCode::kPoolFull, "the pool's leader is behind"};
      refuse(rank, refused);
      return;
    }
    case MessageType::kForward: {
      wire::Forward forward = wire::decode_forward(header);
      wire::ForwardReply full{.ticket = forward.ticket, .items = {}, .message = {}};
      full.items.resize(forward.items.size(), {.code = ErrorCode::kPoolFull});
      if (inbox_->post_forward(rank, std::move(forward))) return;
      full.message = "the pool's leader is behind";
      answer(rank, full);
      return;
    }
    case MessageType::kProgress:
      inbox_->post_progress(wire::decode_progress(header));
      return;
    case MessageType::kBeat:
      inbox_->post_beat(wire::decode_beat(header));
      return;
    default:
      fail(ErrorCode::kMalformedInput, "message type {} from worker {}", static_cast<int>(type),
           rank);
  }
}

void DataPlane::from_leader(MessageType type, std::span<const std::byte> header) {
  switch (type) {
    case MessageType::kWake: {
      {
        const std::lock_guard lock(mutex_);
        ++wakes_;
      }
      changed_.notify_all();
      return;
    }
    case MessageType::kItemsRefused:
      queue_.refuse(wire::decode_items_refused(header));
      return;
    case MessageType::kForwardReply:
      answer_control(wire::decode_forward_reply(header));
      return;
    default:
      fail(ErrorCode::kMalformedInput, "message type {} from the leader", static_cast<int>(type));
  }
}

void DataPlane::hello(PeerId peer, const wire::Hello& hello) {
  wire::Welcome welcome{
      .version = wire::kVersion, .outcome = {}, .rank = config_.rank, .shape = model_.wire};
  if (hello.magic != wire::kMagic) {
    fail(ErrorCode::kMalformedInput, "Hello begins with {:#x}, expected {:#x}", hello.magic,
         wire::kMagic);
  }
  if (hello.version != wire::kVersion) {
    welcome.outcome = {ErrorCode::kUnsupported,
                       fmt::format("the client speaks version {} of the data plane, this worker {}",
                                   hello.version, wire::kVersion)};
  } else if (!access_.allowed(hello.sequence_id, hello.token)) {
    welcome.outcome = {
        ErrorCode::kPermissionDenied,
        fmt::format("the token is not that of sequence {:#x} of this pool", hello.sequence_id)};
  } else {
    const Status same = compare_shapes(hello.shape, model_.wire);
    welcome.outcome = {same.code(), same.message()};
  }
  // A refused client stays until it has read why: tick() ends it.
  set_peer(peer, {.state = welcome.outcome.ok() ? State::kClient : State::kRefused});
  send(peer, MessageType::kWelcome, encode(welcome));
}

void DataPlane::join(PeerId peer, const wire::Join& join) {
  if (!wire::same_token(join.pool_key, config_.pool_key) || join.rank < 1 ||
      join.rank >= config_.workers) {
    fail(ErrorCode::kPermissionDenied, "a Join of rank {} that does not belong to this pool",
         join.rank);
  }
  set_peer(peer, {.state = State::kWorker, .rank = join.rank});
  {
    const std::lock_guard lock(mutex_);
    workers_[static_cast<std::size_t>(join.rank)] = peer;
  }
  inbox_->post_joined(join.rank);
}

void DataPlane::join(const std::string& leader_address) {
  {
    const std::lock_guard lock(mutex_);
    leader_ = transport_->connect(leader_address);
    peers_[leader_] = {.state = State::kLeader, .rank = 0, .since = Deadline::Clock::now()};
  }
  send(leader_, MessageType::kJoin,
       encode(wire::Join{.rank = config_.rank, .pool_key = config_.pool_key}));
}

Status DataPlane::wait_wake(Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.when(), [this] { return wakes_ > 0 || !leader_lost_.ok(); });
  if (wakes_ > 0) {
    --wakes_;
    return {};
  }
  if (!leader_lost_.ok()) return leader_lost_;
  return {ErrorCode::kDeadlineExceeded, "worker 0, the leader, has been silent for too long"};
}

void DataPlane::wake() {
  if (stopping_) return;
  for (std::size_t r = 1; r < workers_.size(); ++r) {
    // Written before the leader began to lead, see LeaderInbox::wait_joined.
    transport_->send(workers_[r], {.type = static_cast<std::uint16_t>(MessageType::kWake),
                                   .header = {},
                                   .payload = {},
                                   .sent = {}});
  }
}

void DataPlane::refuse(int rank, const wire::ItemsRefused& refused) {
  if (rank == config_.rank) {
    queue_.refuse(refused);
  } else {
    send(workers_[static_cast<std::size_t>(rank)], MessageType::kItemsRefused, encode(refused));
  }
}

void DataPlane::answer(int rank, const wire::ForwardReply& reply) {
  if (rank == config_.rank) {
    answer_control(reply);
  } else {
    send(workers_[static_cast<std::size_t>(rank)], MessageType::kForwardReply, encode(reply));
  }
}

void DataPlane::tick() {
  wire::Beat beat;
  beat.rank = config_.rank;
  std::vector<PeerId> late;
  {
    const std::lock_guard lock(mutex_);
    const auto limit = Deadline::Clock::now() - config_.hello_timeout;
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      if (peer->second.state == State::kClient) ++beat.connections;
      const bool idle = peer->second.state == State::kNew || peer->second.state == State::kRefused;
      if (idle && peer->second.since < limit) {
        late.push_back(peer->first);
        peer = peers_.erase(peer);
      } else {
        ++peer;
      }
    }
  }
  for (const PeerId peer : rows_.late_senders()) {
    on_disconnect(peer, {});
    late.push_back(peer);
  }
  for (const PeerId peer : late) transport_->disconnect(peer);
  rows_.add_counts(beat);
  post_beat(beat);
}

bool DataPlane::post_items(wire::Items items) {
  if (inbox_ != nullptr) return inbox_->post_items(config_.rank, std::move(items));
  send(leader_, MessageType::kItems, encode(items));
  return true;
}

bool DataPlane::post_forward(wire::Forward forward) {
  if (inbox_ != nullptr) return inbox_->post_forward(config_.rank, std::move(forward));
  send(leader_, MessageType::kForward, encode(forward));
  return true;
}

void DataPlane::post_progress(const wire::Progress& progress) {
  if (inbox_ != nullptr) return inbox_->post_progress(progress);
  send(leader_, MessageType::kProgress, encode(progress));
}

void DataPlane::post_beat(const wire::Beat& beat) {
  if (inbox_ != nullptr) return inbox_->post_beat(beat);
  send(leader_, MessageType::kBeat, encode(beat));
}

}  // namespace tributary
