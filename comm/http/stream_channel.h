// The socket under a Stream, and what is done to its bytes.
#pragma once

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "comm/http/stream.h"

namespace tributary {

/// Kept alive by its stream and by its own shutdown.
class StreamChannel : public std::enable_shared_from_this<StreamChannel> {
 public:
  using Socket = Stream::Socket;

  StreamChannel() = default;
  StreamChannel(const StreamChannel&) = delete;
  StreamChannel& operator=(const StreamChannel&) = delete;
  virtual ~StreamChannel() = default;

  virtual Socket& socket() = 0;
  virtual void read_some(const ReadBuffers& into, IoHandler handler) = 0;
  virtual void write_some(const WriteBuffers& from, IoHandler handler) = 0;
  virtual void handshake_as_server(Stream::Done done) = 0;
  virtual void handshake_as_client(const std::string& host, Stream::Done done) = 0;
  virtual std::string verification_error() = 0;
  virtual std::string binding() = 0;
  virtual void say_goodbye(Stream::Done done) = 0;
  virtual void shutdown_send();

  void close();
  void finish(Stream::Done done);

 private:
  void drain(const std::shared_ptr<boost::asio::steady_timer>& timer, const Stream::Done& done);

  std::array<char, 4096> trash_;
};

}  // namespace tributary
