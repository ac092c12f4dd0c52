// The pool's link against a control plane made of the HTTP server alone.
#include "deploy/service/worker/leader/control_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "comm/http/http_server.h"
#include "core/base/dtype.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
constexpr auto kPatience = std::chrono::seconds(20);

/// A value that another thread of a test passes to it.
template <typename T>
class Mailbox {
 public:
  void put(T value) {
    {
      const std::lock_guard lock(mutex_);
      values_.push_back(std::move(value));
    }
    changed_.notify_all();
  }
  T take() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [this] { return !values_.empty(); })) {
      fail(ErrorCode::kDeadlineExceeded, "nothing came");
    }
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }
  bool nothing_comes(milliseconds within) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, within, [this] { return !values_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> values_;
};

/// Accepts pools, keeps their messages, sends what the test wants.
class FakeControl {
 public:
  explicit FakeControl(const std::string& listen = "127.0.0.1:0") {
    HttpServerConfig config;
    config.listen = listen;
    server_ = std::make_unique<HttpServer>(
        loop_, config,
        HttpHandlers{
            .request = [](const HttpRequest&, const HttpRespond& respond) { respond({}); },
            .may_upgrade = [this](const HttpRequest& request) -> std::optional<HttpResponse> {
              paths.put(request.path + " " + std::string(request.header("Authorization")));
              if (refuse_with == 0) return {};
              HttpResponse refusal;
              refusal.status = refuse_with;
              return refusal;
            },
            .upgraded =
                [this](const HttpRequest&, std::shared_ptr<WebSocket> socket) {
                  socket->set_handlers({.message =
                                            [this](std::string_view text) {
                                              FromPool word = parse_from_pool(text);
                                              const bool last =
                                                  std::holds_alternative<Goodbye>(word);
                                              words.put(std::move(word));
                                              if (last) socket_->close();
                                            },
                                        .closed = [](const Status&) {}});
                  socket_ = std::move(socket);
                }});
    address = server_->address();
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~FakeControl() {
    loop_.post([this] {
      socket_.reset();
      server_.reset();
      loop_.stop();
    });
    thread_.join();
  }
  FakeControl(const FakeControl&) = delete;
  FakeControl& operator=(const FakeControl&) = delete;

  void say(const ToPool& word) {
    loop_.post([this, word] { socket_->send(to_json(word)); });
  }
  template <typename T>
  T take() {
    for (;;) {
      FromPool word = words.take();
      if (auto* wanted = std::get_if<T>(&word)) return std::move(*wanted);
    }
  }

  std::atomic<int> refuse_with = 0;  // set this before a pool connects
  std::string address;
  Mailbox<std::string> paths;
  Mailbox<FromPool> words;

 private:
  EventLoop loop_;
  std::unique_ptr<HttpServer> server_;
  std::shared_ptr<WebSocket> socket_;
  std::thread thread_;
};

class ControlLinkTest : public testing::Test {
 protected:
  std::unique_ptr<ControlLink> link(const std::string& address) {
    ControlLinkConfig config;
    config.url = parse_url("http://" + address);
    config.bearer_token = "secret";
    config.pool.name = "pool";
    config.pool.run = "run";
    config.pool.shape = {
        {.heads = 1, .kv_lora_rank = 2, .qk_rope_head_dim = 2, .softmax_scale = 1}};
    config.pool.shape.layers = 1;
    config.pool.shape.leaf_tokens = 64;
    config.pool.pages_per_worker = 10;
    config.pool.lease_ms = 1000;
    config.pool.workers.push_back(
        {.rank = 0, .host = "host", .address = "127.0.0.1:1", .backend = "cpu"});
    return std::make_unique<ControlLink>(
        config,
        ControlLinkHandlers{.request =
                                [this](ToPool request) {
                                  requests.put(std::move(request));
                                  return !behind;
                                },
                            .describe = [this](RegisterPool& pool) { pool.draining = draining; },
                            .heartbeat =
                                [] {
                                  Heartbeat beat;
                                  beat.workers.push_back({.rank = 0});
                                  return beat;
                                },
                            .terminate = [] {},
                            .refused = [this](const Status& status) { refused.put(status); },
                            .log = [this](const std::string& line) { log.put(line); }});
  }

  std::atomic<bool> behind = false;
  std::atomic<bool> draining = false;
  Mailbox<ToPool> requests;
  Mailbox<Status> refused;
  Mailbox<std::string> log;
};

TEST_F(ControlLinkTest, RegistersBeatsAnswersAndComesBack) {
  std::string address;
  std::unique_ptr<ControlLink> pool;
  {
    FakeControl control;
    address = control.address;
    pool = link(address);
    EXPECT_EQ(control.paths.take(), "/v1/pools/connect Bearer secret");
    EXPECT_EQ(control.take<RegisterPool>().name, "pool");
    control.say(Registered{.code = ErrorCode::kOk, .message = {}, .incarnation = 3});
    EXPECT_EQ(control.take<Heartbeat>().workers.size(), 1U);
    EXPECT_EQ(control.take<Heartbeat>().workers.size(), 1U);
    control.say(Free{.request = 8, .id = 99});
    EXPECT_EQ(std::get<Free>(requests.take()).id, 99U);
    pool->tell(PoolReply{.request = 8, .code = ErrorCode::kOk, .message = {}, .sequence = {}});
    EXPECT_EQ(control.take<PoolReply>().request, 8U);
    behind = true;
    control.say(Query{.request = 9, .id = 99});
    EXPECT_EQ(control.take<PoolReply>().code, ErrorCode::kUnavailable);
  }
  pool->tell(SequenceEnded{.id = 1, .reason = "lease_expired"});  // there is no connection
  draining = true;
  FakeControl again(address);
  EXPECT_TRUE(again.take<RegisterPool>().draining);
}

TEST_F(ControlLinkTest, EndsWhenItsLastWordHasArrived) {
  FakeControl control;
  auto pool = link(control.address);
  (void)control.take<RegisterPool>();
  control.say(Registered{.code = ErrorCode::kOk, .message = {}, .incarnation = 3});
  (void)control.take<Heartbeat>();
  pool->tell(SequenceEnded{.id = 1, .reason = "freed"});
  pool->tell(Goodbye{});
  pool.reset();
  EXPECT_EQ(control.take<SequenceEnded>().id, 1U);
  (void)control.take<Goodbye>();
}

/// Its end would be the loss of what has registered.
TEST_F(ControlLinkTest, WhoHasSaidGoodbyeDoesNotComeBack) {
  FakeControl control;
  auto pool = link(control.address);
  (void)control.take<RegisterPool>();
  control.say(Registered{.code = ErrorCode::kOk, .message = {}, .incarnation = 3});
  (void)control.take<Heartbeat>();
  pool->tell(Goodbye{});
  (void)control.take<Goodbye>();  // and the connection is closed
  EXPECT_TRUE(control.words.nothing_comes(milliseconds(400))) << "the first retry takes 100";
}

TEST_F(ControlLinkTest, TriesAgainAfterARefusalThatMayPass) {
  FakeControl control;
  const auto pool = link(control.address);
  (void)control.take<RegisterPool>();
  control.say(Registered{.code = ErrorCode::kAlreadyExists, .message = "name", .incarnation = 0});
  EXPECT_EQ(log.take(),
            "refused by the control plane at " + control.address + ": name; trying again");
  (void)control.take<RegisterPool>();
  // The same reason is not logged again; another is.
  control.say(Registered{.code = ErrorCode::kAlreadyExists, .message = "name", .incarnation = 0});
  (void)control.take<RegisterPool>();
  control.say(Registered{.code = ErrorCode::kTooLarge, .message = "size", .incarnation = 0});
  EXPECT_EQ(log.take(),
            "refused by the control plane at " + control.address + ": size; trying again");
  (void)control.take<RegisterPool>();
}

TEST_F(ControlLinkTest, AWrongTokenIsFinal) {
  FakeControl control;
  control.refuse_with = 401;
  const auto pool = link(control.address);
  EXPECT_EQ(refused.take().code(), ErrorCode::kPermissionDenied);
}

}  // namespace
}  // namespace tributary
