// Turns the bytes of a connection into messages. It knows nothing of sockets: its owner asks where
// to read the next bytes to, and reports how many have arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/http/stream.h"
#include "comm/transport/transport.h"

namespace tributary::tcp {

/// Headers and small payloads pass through a buffer of fixed size, so that one read can bring many
/// messages. Large pieces of a payload are read directly into their landing. A frame whose lengths
/// exceed the limits is refused before anything is allocated for it.
class FrameReader {
 public:
  /// A message has arrived. Returns where its payload goes, as TransportHandler::on_message does.
  using OnMessage = std::function<std::optional<Landing>(
      std::uint16_t type, std::span<const std::byte> header, std::size_t payload_bytes)>;

  /// `config` outlives it.
  FrameReader(const TransportConfig& config, OnMessage on_message);
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;
  ~FrameReader() = default;

  /// Where the next bytes go; never empty, valid until filled() or stop().
  [[nodiscard]] ReadBuffers space();
  /// The first `bytes` of space() have been read. Throws kMalformedInput for an invalid frame,
  /// kTooLarge for one beyond the limits; after that only stop() may be called.
  void filled(std::size_t bytes);
  /// Drops everything that arrives from now on; a payload in progress ends with `reason`.
  void stop(const Status& reason);

  /// Whether a payload is being read into the handler's memory.
  [[nodiscard]] bool landing() const noexcept { return landing_.has_value(); }
  /// Whether the rest of a frame is due.
  [[nodiscard]] bool in_frame() const noexcept { return payload_left_ > 0 || begin_ < end_; }
  /// Number of complete frames. As long as it does not change, in_frame() speaks of the same frame.
  [[nodiscard]] std::uint64_t frames() const noexcept { return frames_; }

 private:
  void parse();
  void begin_payload(std::optional<Landing> landing, std::size_t bytes);
  [[nodiscard]] ReadBuffers rest_of_landing() const;
  void fill_landing(std::size_t bytes);
  void land(std::span<const std::byte> part);
  void advance(std::size_t bytes);
  /// The unfilled rest of the landing's current piece.
  [[nodiscard]] std::span<std::byte> piece();

  const TransportConfig& config_;
  const OnMessage on_message_;
  std::vector<std::byte> buffer_;    // allocated by the first space()
  std::size_t begin_ = 0, end_ = 0;  // of its bytes that are not parsed yet
  bool direct_ = false;              // the last space() was of the landing
  bool stopped_ = false;
  std::uint64_t frames_ = 0;

  std::size_t payload_left_ = 0;
  std::optional<Landing> landing_;  // none: the rest of the payload is dropped
  std::size_t piece_ = 0;           // of the landing
  std::size_t piece_filled_ = 0;
};

}  // namespace tributary::tcp
