#include "comm/http/stream_channel.h"

#include <chrono>
#include <utility>

namespace tributary {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {
// The time for draining a closed connection: a few round trips over any network.
constexpr std::chrono::milliseconds kLinger{1'000};
}  // namespace

void StreamChannel::shutdown_send() {
  error_code ignored;
  socket().shutdown(Socket::shutdown_send, ignored);
}

void StreamChannel::close() {
  error_code ignored;
  socket().close(ignored);
}

void StreamChannel::finish(Stream::Done done) {
  auto timer = std::make_shared<asio::steady_timer>(socket().get_executor(), kLinger);
  timer->async_wait([self = shared_from_this()](const error_code& error) {
    if (!error) self->close();
  });
  say_goodbye([self = shared_from_this(), timer, done = std::move(done)](const error_code&) {
    self->shutdown_send();
    self->drain(timer, done);
  });
}

/// Closing with unread bytes would reset the connection, and our last bytes would be lost.
void StreamChannel::drain(const std::shared_ptr<asio::steady_timer>& timer,
                          const Stream::Done& done) {
  socket().async_read_some(asio::buffer(trash_), [self = shared_from_this(), timer, done](
                                                     const error_code& error, std::size_t) {
    if (!error) return self->drain(timer, done);
    timer->cancel();
    self->close();
    done({});
  });
}

}  // namespace tributary
