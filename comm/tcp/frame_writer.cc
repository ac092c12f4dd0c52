#include "comm/tcp/frame_writer.h"

#include <algorithm>
#include <utility>

#include "comm/tcp/frame_header.h"
#include "comm/transport/message_limits.h"

namespace tributary::tcp {

std::vector<std::byte> encode_frame(const OutgoingMessage& message) {
  std::vector<std::byte> head =
      encode(FrameHeader{.payload_bytes = message.payload_bytes(),
                         .header_bytes = static_cast<std::uint32_t>(message.header.size()),
                         .type = message.type});
  head.insert(head.end(), message.header.begin(), message.header.end());
  return head;
}

void FrameWriter::push(OutgoingMessage message, Time now, std::size_t written) {
  Waiting next{.head = encode_frame(message),
               .payload = {},
               .sent = std::move(message.sent),
               .cost = cost_of(message),
               .since = now};
  next.payload = std::move(message.payload);
  std::erase_if(next.payload, [](std::span<const std::byte> piece) { return piece.empty(); });
  bytes_ += next.cost;
  waiting_.push_back(std::move(next));
  this->written(written);
}

WriteBuffers FrameWriter::next() const {
  WriteBuffers buffers;
  std::size_t piece = piece_;
  std::size_t written = piece_written_;
  for (const Waiting& message : waiting_) {
    for (; piece < message.pieces(); ++piece, written = 0) {
      if (buffers.full()) return buffers;
      const auto rest = message.piece(piece).subspan(written);
      buffers.add({rest.data(), rest.size()});
    }
    piece = 0;
  }
  return buffers;
}

void FrameWriter::written(std::size_t bytes) {
  while (bytes > 0) {
    const Waiting& front = waiting_.front();
    const std::size_t part = std::min(bytes, front.piece(piece_).size() - piece_written_);
    bytes -= part;
    piece_written_ += part;
    if (piece_written_ < front.piece(piece_).size()) return;
    piece_written_ = 0;
    if (++piece_ == front.pieces()) pop({});
  }
}

void FrameWriter::stop(const Status& reason) {
  while (!waiting_.empty()) pop(reason);
}

void FrameWriter::pop(const Status& status) {
  const Waiting ended = std::move(waiting_.front());
  waiting_.pop_front();
  bytes_ -= ended.cost;
  piece_ = piece_written_ = 0;
  if (ended.sent) ended.sent(status);
}

}  // namespace tributary::tcp
