// The listening socket, and those who connect to it, when descriptors run out.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "comm/tcp/tcp_transport.h"
#include "tests/comm/transport/answering.h"
#include "tests/comm/transport/few_descriptors.h"
#include "tests/comm/transport/silent_handler.h"
#include "tests/comm/transport/sockets_of_process.h"
#include "tests/comm/transport/stranger.h"
#include "tests/core/base/expect_error.h"

namespace tributary::testing_support {
namespace {

class Watching final : public SilentHandler {
 public:
  void on_accepting_paused(const Status& reason) override {
    if (pauses++ == 0) paused.set_value(reason);
  }
  std::promise<Status> paused;
  std::atomic<int> pauses = 0;
};

}  // namespace

TEST(TcpListener, AcceptingGoesOnWhenDescriptorsAreBack) {
  AnsweringServer server(make_tcp_transport, {.listen = "127.0.0.1:0"});
  AskingClient client(make_tcp_transport, server.address());
  client.expect_answer();
  {
    std::vector<Stranger> strangers(8);
    const FewDescriptors few(1);  // for the server: one of them gets in
    for (const Stranger& stranger : strangers) stranger.connect(server.address());
    client.expect_answer();  // existing connections stay open
  }
  client.expect_answer();
  for (int i = 0; i < 3; ++i) {
    AskingClient later(make_tcp_transport, server.address());
    later.expect_answer();
  }
  EXPECT_EQ(listening_addresses(), std::vector<std::string>{server.address()});
}

TEST(TcpListener, AcceptingPausesBeforeTheLastDescriptorIsGone) {
  Watching handler;
  const auto server = make_tcp_transport({.listen = "127.0.0.1:0"}, handler);
  std::vector<Stranger> strangers(12);
  const FewDescriptors few(3);  // of more than 16: two are the reserve
  for (const Stranger& stranger : strangers) stranger.connect(server->address());
  auto paused = handler.paused.get_future();
  ASSERT_EQ(paused.wait_for(kAmple), std::future_status::ready);
  const Status reason = paused.get();
  EXPECT_EQ(reason.code(), ErrorCode::kUnavailable);
  EXPECT_NE(reason.message().find(server->address()), std::string::npos) << reason.message();
  const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_GE(file, 0);
  EXPECT_EQ(close(file), 0);
  EXPECT_EQ(handler.pauses, 1);
}

TEST(TcpListener, AClientWithoutADescriptorIsToldSo) {
  AnsweringServer server(make_tcp_transport, {.listen = "127.0.0.1:0"});
  AskingClient first(make_tcp_transport, server.address());
  first.expect_answer();  // no thread of the server holds a descriptor for a moment from here on
  Endpoint client(make_tcp_transport, {});
  {
    const FewDescriptors none(0);
    const PeerId peer = client.transport().connect(server.address());
    EXPECT_EQ(client.wait_disconnect(peer).code(), ErrorCode::kUnavailable);
  }
  const PeerId peer = client.transport().connect(server.address());
  client.send(peer, 1, "");
  EXPECT_EQ(client.receive().header, to_bytes("here"));
}

TEST(TcpListener, ATransportWithoutADescriptorIsNotMade) {
  SilentHandler handler;
  const FewDescriptors none(0);
  EXPECT_EQ(code_of([&] { static_cast<void>(make_tcp_transport({}, handler)); }), ErrorCode::kIo);
  EXPECT_EQ(
      code_of([&] { static_cast<void>(make_tcp_transport({.listen = "127.0.0.1:0"}, handler)); }),
      ErrorCode::kIo);
}

}  // namespace tributary::testing_support
