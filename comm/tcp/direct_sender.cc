#include "comm/tcp/direct_sender.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <utility>

#include "comm/tcp/frame_header.h"
#include "comm/tcp/frame_writer.h"
#include "comm/transport/message_limits.h"

namespace tributary::tcp {
namespace {

/// Pieces of one write; the rest of a message that has more follows as if the socket were full.
constexpr std::size_t kMaxPieces = 64;

}  // namespace

void DirectSender::open(int socket) {
  const std::lock_guard lock(mutex_);
  if (!closed_) socket_ = socket;
}

void DirectSender::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  socket_ = -1;
}

bool DirectSender::closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void DirectSender::done(std::size_t messages) {
  const std::lock_guard lock(mutex_);
  left_ -= messages;
}

std::vector<Unfinished> DirectSender::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(waiting_, {});
}

Sent DirectSender::send(OutgoingMessage& message) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Sent::kClosed;
    const bool direct =
        socket_ >= 0 && left_ == 0 &&
        check_size(config_, message.type, message.header.size(), message.payload_bytes()).ok();
    const std::size_t written = direct ? write(message) : 0;
    if (written < frame_bytes(message)) {
      waiting_.push_back({std::move(message), written});
      ++left_;
      return Sent::kWaiting;
    }
  }
  if (message.sent) message.sent({});
  return Sent::kWhole;
}

std::size_t DirectSender::write(const OutgoingMessage& message) const {
  std::vector<std::byte> head = encode_frame(message);
  std::array<iovec, kMaxPieces> pieces;
  pieces[0] = {head.data(), head.size()};
  std::size_t count = 1;
  for (const std::span<const std::byte> piece : message.payload) {
    if (count == kMaxPieces) break;
    pieces[count++] = {const_cast<std::byte*>(piece.data()), piece.size()};
  }
  msghdr all{};
  all.msg_iov = pieces.data();
  all.msg_iovlen = count;
  const ssize_t sent = ::sendmsg(socket_, &all, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent > 0 ? static_cast<std::size_t>(sent) : 0;  // an error shows later as well
}

std::shared_ptr<DirectSender> DirectSenders::add(PeerId peer) {
  const std::lock_guard lock(mutex_);
  return senders_[peer] = std::make_shared<DirectSender>(config_);
}

void DirectSenders::remove(PeerId peer) {
  const std::lock_guard lock(mutex_);
  senders_.erase(peer);
}

std::shared_ptr<DirectSender> DirectSenders::find(PeerId peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = senders_.find(peer);
  return found == senders_.end() ? nullptr : found->second;
}

std::size_t frame_bytes(const OutgoingMessage& message) noexcept {
  return FrameHeader::kBytes + message.header.size() + message.payload_bytes();
}

}  // namespace tributary::tcp
