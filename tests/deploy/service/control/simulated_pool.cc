// A pool model that registers over a real WebSocket.
#include "tests/deploy/service/control/simulated_pool.h"

#include <future>
#include <utility>
#include <variant>

namespace tributary {

using std::chrono::milliseconds;

namespace {

/// Bounds a hang, and decides nothing.
constexpr auto kPatience = std::chrono::minutes(1);

}  // namespace

SimulatedPool::SimulatedPool(const SimulatedPoolConfig& config) : config_(config), model_(config) {
  WebSocketClientConfig client;
  client.url = parse_url("http://" + config_.control + "/v1/pools/connect");
  client.timeout = client.idle_timeout = kPatience;
  if (!config_.token.empty()) client.headers = {{"Authorization", "Bearer " + config_.token}};
  loop_.post([this, client] {
    connect_websocket(loop_, client,
                      [this](std::shared_ptr<WebSocket> socket, const Status& status) {
                        connected(std::move(socket), status);
                      });
  });
  thread_ = std::thread([this] { loop_.run(); });
}

SimulatedPool::~SimulatedPool() {
  loop_.stop();
  thread_.join();
}

void SimulatedPool::connected(std::shared_ptr<WebSocket> socket, const Status& status) {
  if (!socket) return settle({status.code(), status.message(), 0});
  socket_ = std::move(socket);
  socket_->set_handlers({[this](std::string_view text) { receive(text); },
                         [this](const Status& reason) {
                           beats_.reset();
                           settle({reason.code(), reason.message(), 0});
                         }});
  for (const FromPool& word : registration(model_.about())) socket_->send(to_json(word));
}

void SimulatedPool::settle(Registered outcome) {
  const std::lock_guard lock(mutex_);
  if (!outcome_) outcome_ = std::move(outcome);
  changed_.notify_all();
}

void SimulatedPool::receive(std::string_view text) {
  const ToPool message = parse_to_pool(text);
  if (const auto* registered = std::get_if<Registered>(&message)) {
    if (registered->code == ErrorCode::kOk) {
      beat();
      beats_ = loop_.every(milliseconds(100), [this] { beat(); });
    }
    return settle(*registered);
  }
  const std::lock_guard lock(mutex_);
  const PoolReply answered = model_.answer(message);
  changed_.notify_all();
  if (!stalled_) socket_->send(to_json(FromPool(answered)));
}

void SimulatedPool::beat() {
  const std::lock_guard lock(mutex_);
  ++beaten_;
  socket_->send(to_json(FromPool(model_.beat())));
  changed_.notify_all();
}

bool SimulatedPool::wait_for_beats(int count) {
  std::unique_lock lock(mutex_);
  const int before = beaten_;
  return changed_.wait_for(lock, kPatience, [&] { return beaten_ >= before + count; });
}

Registered SimulatedPool::wait_registered() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [this] { return outcome_.has_value(); })) {
    fail(ErrorCode::kDeadlineExceeded, "the control plane did not answer a registration");
  }
  return *outcome_;
}

bool SimulatedPool::wait_for(
    const std::function<bool(const std::map<SequenceId, SequenceInfo>&)>& holds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return holds(model_.sequences()); });
}

std::vector<SequenceInfo> SimulatedPool::sequences() {
  const std::lock_guard lock(mutex_);
  return model_.about().sequences;
}

bool SimulatedPool::draining() {
  const std::lock_guard lock(mutex_);
  return model_.draining();
}

void SimulatedPool::stall() {
  std::promise<void> done;
  loop_.post([&] {
    stalled_ = true;
    done.set_value();
  });
  done.get_future().wait();
}

void SimulatedPool::expire(SequenceId id) {
  {
    const std::lock_guard lock(mutex_);
    model_.end(id);
  }
  send(to_json(FromPool(SequenceEnded{id, "lease_expired"})));
}

void SimulatedPool::send(const std::string& text) {
  loop_.post([this, text] { socket_->send(text); });
}

SimulatedPoolConfig pool_of(const ControlHarness& control, const std::string& name) {
  SimulatedPoolConfig config;
  config.control = control.address();
  config.name = name;
  return config;
}

}  // namespace tributary
