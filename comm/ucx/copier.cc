#include "comm/ucx/copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tributary::ucx {
namespace {

/// What is looked at right after it was copied is still in the first-level cache, of 32 KiB or
/// more.
constexpr std::size_t kPart = std::size_t{16} << 10;

}  // namespace

void land(const Landing& landing, const std::byte* payload) {
  for (std::span<std::byte> piece : landing.pieces) {
    while (!piece.empty()) {
      const auto part = piece.first(std::min(piece.size(), kPart));
      std::memcpy(part.data(), payload, part.size());
      if (landing.landed) landing.landed(part);
      payload += part.size();
      piece = piece.subspan(part.size());
    }
  }
}

Copier::Copier(std::function<void()> wake) : wake_(std::move(wake)), thread_([this] { run(); }) {}

Copier::~Copier() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Copier::add(std::uint64_t number, const Landing& landing, const std::byte* payload) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({number, &landing, payload});
  }
  changed_.notify_all();
}

std::vector<std::uint64_t> Copier::take_landed() {
  const std::lock_guard lock(mutex_);
  return std::exchange(landed_, {});
}

void Copier::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty(); });
}

void Copier::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = jobs_.front();
    lock.unlock();
    land(*job.landing, job.payload);
    lock.lock();
    jobs_.pop_front();
    landed_.push_back(job.number);
    lock.unlock();
    changed_.notify_all();
    wake_();
    lock.lock();
  }
}

}  // namespace tributary::ucx
