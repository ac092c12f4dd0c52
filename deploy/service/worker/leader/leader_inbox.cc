#include "deploy/service/worker/leader/leader_inbox.h"

#include <algorithm>
#include <iterator>

namespace tributary {

bool LeaderMail::empty() const noexcept {
  return items.empty() && relays.empty() && progress.empty() && requests.empty() &&
         leaving.empty() && joined.empty() && !stop && !order_wanted && ended.ok();
}

void LeaderMail::clear() {
  items.clear();
  relays.clear();
  progress.clear();
  requests.clear();
  leaving.clear();
  joined.clear();
  stop = false;
  order_wanted = false;
  ended = {};
}

LeaderInbox::LeaderInbox(int workers, Clock& clock)
    : clock_(clock), peers_(static_cast<std::size_t>(workers)) {
  peers_.front().joined = true;
}

template <typename Message>
bool LeaderInbox::post(std::vector<Message>& messages, Message message) {
  {
    const std::lock_guard lock(mutex_);
    if (messages.size() >= kMaxMessages) return false;
    messages.push_back(std::move(message));
  }
  changed_.notify_all();
  return true;
}

bool LeaderInbox::post_items(int rank, wire::Items items) {
  return post(mail_.items, {rank, clock_.now(), std::move(items)});
}

bool LeaderInbox::post_relay(int rank, wire::ControlRelay relay) {
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_.at(static_cast<std::size_t>(rank));
    if (peer.relays >= std::max<std::size_t>(kMaxMessages / peers_.size(), 1)) return false;
    ++peer.relays;
    mail_.relays.push_back({rank, std::move(relay)});
  }
  changed_.notify_all();
  return true;
}

bool LeaderInbox::post_request(ToPool request) {
  return post(mail_.requests, std::move(request));
}

void LeaderInbox::post_progress(const wire::Progress& progress) {
  {
    const std::lock_guard lock(mutex_);
    progress_.insert_or_assign({progress.sequence_id, progress.rank},
                               LeaderMail::Progress{clock_.now(), progress});
    completed_ = completed_ || progress.missing_layer < 0;
  }
  // An incomplete prompt needs no action: the leader reads this when it wakes for something else.
  if (progress.missing_layer < 0) changed_.notify_all();
}

void LeaderInbox::post_beat(const wire::Beat& beat) {
  const std::lock_guard lock(mutex_);
  if (beat.rank < 0 || static_cast<std::size_t>(beat.rank) >= peers_.size()) return;
  Peer& peer = peers_[static_cast<std::size_t>(beat.rank)];
  peer.heard = clock_.now();
  peer.beat = beat;
}

void LeaderInbox::post_joined(const WorkerInfo& worker) {
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_.at(static_cast<std::size_t>(worker.rank));
    if (std::exchange(peer.lost, false)) mail_.joined.push_back(worker);
    peer.joined = true;
    peer.heard = clock_.now();
    peer.beat = {};
  }
  changed_.notify_all();
}

void LeaderInbox::post_lost(int rank, const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_.at(static_cast<std::size_t>(rank));
    if (std::exchange(peer.lost, true) || reason.ok()) return;
    lost_.push_back({rank, reason});
    std::erase_if(mail_.joined, [&](const WorkerInfo& worker) { return worker.rank == rank; });
  }
  changed_.notify_all();
  if (on_lost_) on_lost_(rank, reason);
}

void LeaderInbox::post_leaving(int rank) {
  {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(mail_.leaving, rank) == mail_.leaving.end()) {
      mail_.leaving.push_back(rank);
    }
  }
  changed_.notify_all();
}

void LeaderInbox::post_end(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (mail_.ended.ok()) mail_.ended = reason;
  }
  changed_.notify_all();
}

void LeaderInbox::post_order_wanted() {
  {
    const std::lock_guard lock(mutex_);
    mail_.order_wanted = true;
  }
  changed_.notify_all();
}

void LeaderInbox::post_stop() {
  {
    const std::lock_guard lock(mutex_);
    mail_.stop = true;
  }
  changed_.notify_all();
}

void LeaderInbox::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void LeaderInbox::wait(Time until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(clock_, lock, until,
                      [this] { return woken_ || completed_ || !lost_.empty() || !mail_.empty(); });
  woken_ = false;
}

std::vector<LeaderInbox::Lost> LeaderInbox::take_lost(Time until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(clock_, lock, until, [this] { return !lost_.empty() || !mail_.ended.ok(); });
  return std::exchange(lost_, {});
}

void LeaderInbox::take(LeaderMail& mail) {
  mail.clear();
  const std::lock_guard lock(mutex_);
  std::swap(mail, mail_);
  auto end = mail.relays.begin();
  for (std::size_t items = 0; end != mail.relays.end(); ++end) {
    items += end->relay.items.size();
    if (items > kControlsATime && end != mail.relays.begin()) break;
    --peers_[static_cast<std::size_t>(end->rank)].relays;
  }
  mail_.relays.assign(std::move_iterator(end), std::move_iterator(mail.relays.end()));
  mail.relays.erase(end, mail.relays.end());
  for (const auto& [key, progress] : progress_) mail.progress.push_back(progress);
  progress_.clear();
  completed_ = false;
  // A pool that has ended stays so.
  mail_.ended = mail.ended;
}

Status LeaderInbox::wait_joined(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto absent = [this] {
    return std::ranges::find(peers_, false, &Peer::joined) - peers_.begin();
  };
  const auto all = static_cast<std::ptrdiff_t>(peers_.size());
  changed_.wait_until(clock_, lock, deadline.when(),
                      [&] { return absent() == all || !lost_.empty() || !mail_.ended.ok(); });
  if (!lost_.empty()) return lost_.front().reason;
  if (!mail_.ended.ok()) return mail_.ended;
  if (absent() == all) return {};
  return {ErrorCode::kDeadlineExceeded,
          fmt::format("worker {} has not connected to worker 0's data plane", absent())};
}

std::vector<LeaderInbox::Heard> LeaderInbox::heard(Time now) const {
  const std::lock_guard lock(mutex_);
  std::vector<Heard> heard(peers_.size());
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    const Peer& peer = peers_[r];
    heard[r].beat = peer.beat;
    if (r > 0 && peer.joined && !peer.lost) heard[r].age = std::max(now - peer.heard, Duration{});
  }
  return heard;
}

std::vector<LeaderInbox::Lost> LeaderInbox::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

}  // namespace tributary
