// A peer for ucx_process_test and ucx_arrival_test.
//   ucx_peer_program echo            prints its address, sends everything back
//   ucx_peer_program send ADDRESS N  sends messages of N bytes, one after another
//   ucx_peer_program knock ADDRESS   prints a line, waits for one, connects and sends a message
// Ends when its standard input does, and before the time limit of a test whatever happens.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/ucx/ucx_transport.h"
#include "tests/comm/transport/silent_handler.h"

namespace tributary {
namespace {

class EchoHandler final : public TransportHandler {
 public:
  void use(Transport& transport) { transport_ = &transport; }

  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override {
    auto payload = std::make_shared<std::vector<std::byte>>(payload_bytes);
    auto reply = [this, peer, type, payload,
                  copy =
                      std::vector<std::byte>(header.begin(), header.end())](const Status& status) {
      if (!status.ok()) return;
      transport_->send(peer, {.type = type,
                              .header = copy,
                              .payload = {*payload},
                              .sent = [payload](const Status& /*status*/) {}});
    };
    if (payload_bytes > 0) return Landing{{*payload}, reply};
    reply({});
    return std::nullopt;
  }
  void on_disconnect(PeerId /*peer*/, const Status& /*reason*/) override {}

 private:
  Transport* transport_ = nullptr;
};

void wait_for_end_of_input() {
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

void echo() {
  EchoHandler handler;
  const auto transport = make_ucx_transport({.listen = "127.0.0.1:0"}, handler);
  handler.use(*transport);
  std::printf("%s\n", transport->address().c_str());
  static_cast<void>(std::fflush(stdout));
  wait_for_end_of_input();
}

void knock(const std::string& address) {
  SilentHandler handler;
  const auto transport = make_ucx_transport({}, handler);
  std::printf("ready\n");
  static_cast<void>(std::fflush(stdout));
  char byte = 0;
  if (read(STDIN_FILENO, &byte, 1) <= 0) return;
  transport->send(transport->connect(address),
                  {.type = 1, .header = {}, .payload = {}, .sent = {}});
  wait_for_end_of_input();
}

void send(const std::string& address, std::size_t bytes) {
  SilentHandler handler;
  const std::vector<std::byte> payload(bytes, std::byte{0x5C});
  std::function<void(const Status&)> next;
  const auto transport = make_ucx_transport({}, handler);
  const PeerId peer = transport->connect(address);
  next = [&](const Status& status) {
    if (status.ok())
      transport->send(peer, {.type = 1, .header = {}, .payload = {payload}, .sent = next});
  };
  next({});
  wait_for_end_of_input();
}

}  // namespace
}  // namespace tributary

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  alarm(110);
  if (arguments.size() == 1 && arguments[0] == "echo") {
    tributary::echo();
    return 0;
  }
  if (arguments.size() == 2 && arguments[0] == "knock") {
    tributary::knock(arguments[1]);
    return 0;
  }
  if (arguments.size() == 3 && arguments[0] == "send") {
    tributary::send(arguments[1], std::stoull(arguments[2]));
    return 0;
  }
  static_cast<void>(std::fprintf(stderr, "ucx_peer_program: wrong arguments\n"));
  return 2;
}
