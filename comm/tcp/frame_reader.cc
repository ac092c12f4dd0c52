#include "comm/tcp/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/tcp/frame_header.h"
#include "comm/transport/message_limits.h"

namespace tributary::tcp {
namespace {

/// Two records of TLS, or a burst of small messages.
constexpr std::size_t kBufferBytes = std::size_t{32} << 10;
/// Shorter pieces are copied from the buffer, which takes less time than a separate read.
constexpr std::size_t kMinDirectBytes = std::size_t{8} << 10;
/// The bytes of one read are still in the second-level cache when inspect() computes its checksum.
/// A page of the cache is smaller, so that a read fills several: each costs a system call and more.
constexpr std::size_t kMaxDirectBytes = std::size_t{256} << 10;

}  // namespace

FrameReader::FrameReader(const TransportConfig& config, OnMessage on_message)
    : config_(config), on_message_(std::move(on_message)) {}

ReadBuffers FrameReader::space() {
  direct_ = false;
  if (begin_ == end_ && landing_) {
    const ReadBuffers rest = rest_of_landing();
    if (boost::asio::buffer_size(rest) >= kMinDirectBytes) {
      direct_ = true;
      return rest;
    }
  }
  if (buffer_.empty()) {
    buffer_.resize(std::max(kBufferBytes, FrameHeader::kBytes + config_.max_header_bytes));
  }
  if (begin_ > 0) {  // the start of an incomplete frame, or nothing
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  ReadBuffers space;
  space.add(boost::asio::buffer(buffer_) + end_);
  return space;
}

void FrameReader::filled(std::size_t bytes) {
  if (stopped_) return;
  if (direct_) {
    fill_landing(bytes);
    advance(bytes);
    return;
  }
  end_ += bytes;
  parse();
}

void FrameReader::stop(const Status& reason) {
  stopped_ = true;
  begin_ = end_ = payload_left_ = 0;
  if (const auto ended = std::exchange(landing_, std::nullopt)) ended->done(reason);
}

void FrameReader::parse() {
  while (true) {
    const std::span<const std::byte> all = std::span(buffer_).subspan(begin_, end_ - begin_);
    if (payload_left_ > 0) {
      const auto part = all.first(std::min(all.size(), payload_left_));
      if (part.empty()) return;
      begin_ += part.size();
      if (landing_) land(part);
      advance(part.size());
      continue;
    }
    if (all.size() < FrameHeader::kBytes) return;
    const FrameHeader frame = decode(all.first(FrameHeader::kBytes));
    check_size(config_, frame.type, frame.header_bytes, frame.payload_bytes).throw_if_error();
    const auto rest = all.subspan(FrameHeader::kBytes);
    if (rest.size() < frame.header_bytes) return;
    begin_ += FrameHeader::kBytes + frame.header_bytes;
    begin_payload(on_message_(frame.type, rest.first(frame.header_bytes), frame.payload_bytes),
                  frame.payload_bytes);
  }
}

void FrameReader::begin_payload(std::optional<Landing> landing, std::size_t bytes) {
  payload_left_ = bytes;
  if (bytes == 0) ++frames_;
  if (bytes == 0 || !landing) return;
  std::size_t room = 0;
  for (const std::span<std::byte> piece : landing->pieces) room += piece.size();
  if (room != bytes) {
    landing->done({ErrorCode::kInternal, "the landing's size differs from the payload's"});
    return;
  }
  landing_ = std::move(landing);
  piece_ = piece_filled_ = 0;
}

std::span<std::byte> FrameReader::piece() {
  while (landing_->pieces[piece_].size() == piece_filled_) {
    ++piece_;
    piece_filled_ = 0;
  }
  return landing_->pieces[piece_].subspan(piece_filled_);
}

ReadBuffers FrameReader::rest_of_landing() const {
  ReadBuffers rest;
  std::size_t left = kMaxDirectBytes;
  std::size_t filled = piece_filled_;
  for (std::size_t i = piece_; i < landing_->pieces.size() && left > 0 && !rest.full(); ++i) {
    const std::span<std::byte> part = landing_->pieces[i].subspan(std::exchange(filled, 0));
    rest.add(boost::asio::buffer(part.data(), std::min(part.size(), left)));
    left -= std::min(part.size(), left);
  }
  return rest;
}

void FrameReader::fill_landing(std::size_t bytes) {
  while (bytes > 0) {
    const std::span<std::byte> next = piece();
    const std::span<std::byte> arrived = next.first(std::min(next.size(), bytes));
    if (landing_->inspect) landing_->inspect(arrived);
    piece_filled_ += arrived.size();
    bytes -= arrived.size();
  }
}

void FrameReader::land(std::span<const std::byte> part) {
  if (landing_->inspect) landing_->inspect(part);
  while (!part.empty()) {
    const std::span<std::byte> to = piece();
    const std::size_t bytes = std::min(to.size(), part.size());
    std::memcpy(to.data(), part.data(), bytes);
    piece_filled_ += bytes;
    part = part.subspan(bytes);
  }
}

void FrameReader::advance(std::size_t bytes) {
  payload_left_ -= bytes;
  if (payload_left_ > 0) return;
  ++frames_;
  if (const auto ended = std::exchange(landing_, std::nullopt)) ended->done({});
}

}  // namespace tributary::tcp
