#include "tests/deploy/service/worker/service_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "comm/local/run_ranks.h"
#include "deploy/service/transport/data_transport.h"

namespace tributary::test {

WorkerOptions small_options() {
  WorkerOptions options;
  options.name = "test";
  options.shape = "deepseek-v2-lite";
  options.layers = 2;
  options.kv_gib = 0.02;  // 145 pages
  options.leaf_tokens = 64;
  options.threads = 1;
  options.listen = "127.0.0.1";
  options.leader.canary_interval_ms = 1;
  options.leader.drain_timeout_ms = 10;
  return options;
}

class ServicePool::Channel final : public ControlChannel {
 public:
  explicit Channel(ServicePool& pool) : pool_(pool) {}
  ~Channel() override {
    const std::lock_guard lock(pool_.ending_);
    pool_.handlers_ = {};
  }
  void tell(const FromPool& word) override {
    {
      const std::lock_guard lock(pool_.mutex_);
      pool_.words_.push_back(word);
    }
    pool_.changed_.notify_all();
  }

 private:
  ServicePool& pool_;
};

ServicePool::ServicePool(int workers, const WorkerOptions& options, Intercept intercept) {
  auto started = serving_.get_future();
  thread_ = std::thread([this, workers, options, intercept = std::move(intercept)] {
    WorkerEvents events;
    events.log = [](const std::string&) {};
    events.serving = [this](const RegisterPool&) { serving_.set_value(); };
    ended_.set_value(status_of([&] {
      run_ranks(workers, [&](Communicator& communicator) {
        run_worker(
            options, communicator,
            [&](const TransportConfig& config, TransportHandler& handler) {
              return make_data_transport()(config, intercept ? intercept(handler) : handler);
            },
            events,
            [&](RegisterPool pool, ControlLinkHandlers handlers) {
              card_ = std::move(pool);
              handlers_ = std::move(handlers);
              return std::make_unique<Channel>(*this);
            });
      });
    }));
  });
  while (started.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    if (end_.wait_for(std::chrono::milliseconds(0)) == std::future_status::ready) {
      thread_.join();
      joined_ = true;
      end_.get().throw_if_error();
    }
  }
}

ServicePool::~ServicePool() {
  if (joined_) return;
  const Status status = status_of([&] { stop(); });
  if (!status.ok()) ADD_FAILURE() << "the pool ended with " << status.message();
}

void ServicePool::stop() {
  {
    const std::lock_guard lock(ending_);
    if (handlers_.terminate) handlers_.terminate();  // a pool that has failed has none
  }
  const Status status = wait_end();
  status.throw_if_error();
}

Status ServicePool::wait_end() {
  if (end_.wait_for(kPatience) != std::future_status::ready) {
    ADD_FAILURE() << "the pool does not end";
  }
  thread_.join();
  joined_ = true;
  return end_.get();
}

RegisterPool ServicePool::card() {
  RegisterPool card = card_;
  handlers_.describe(card);
  return card;
}

Heartbeat ServicePool::heartbeat() {
  return handlers_.heartbeat();
}

PoolReply ServicePool::wait_reply(std::uint64_t request) {
  const auto is_it = [request](const FromPool& word) {
    const auto* reply = std::get_if<PoolReply>(&word);
    return reply != nullptr && reply->request == request;
  };
  std::unique_lock lock(mutex_);
  auto found = words_.end();
  changed_.wait_for(lock, kPatience, [&] {
    found = std::find_if(words_.begin(), words_.end(), is_it);
    return found != words_.end();
  });
  if (found == words_.end()) fail(ErrorCode::kDeadlineExceeded, "no reply to {}", request);
  PoolReply reply = std::get<PoolReply>(*found);
  words_.erase(found);
  return reply;
}

SequenceInfo ServicePool::admit(std::int64_t prompt_tokens, std::int64_t max_new_tokens,
                                SpreadPolicy spread) {
  const PoolReply reply = ask(Admit{
      .request = 0,
      .id = ++last_id_,
      .wanted = {
          .prompt_tokens = prompt_tokens, .max_new_tokens = max_new_tokens, .spread = spread}});
  Status(reply.code, reply.message).throw_if_error();
  return reply.sequence.value();
}

void ServicePool::free(SequenceId id) {
  const PoolReply reply = ask(Free{.request = 0, .id = id});
  Status(reply.code, reply.message).throw_if_error();
}

SequenceEnded ServicePool::wait_ended() {
  const auto is_it = [](const FromPool& word) {
    return std::holds_alternative<SequenceEnded>(word);
  };
  std::unique_lock lock(mutex_);
  auto found = words_.end();
  changed_.wait_for(lock, kPatience, [&] {
    found = std::find_if(words_.begin(), words_.end(), is_it);
    return found != words_.end();
  });
  if (found == words_.end()) fail(ErrorCode::kDeadlineExceeded, "no sequence has ended");
  SequenceEnded ended = std::get<SequenceEnded>(*found);
  words_.erase(found);
  return ended;
}

std::int64_t ServicePool::held_pages() {
  std::int64_t pages = 0;
  for (const auto& worker : heartbeat().workers) pages += worker.pages_used + worker.pages_reserved;
  return pages;
}

void ServicePool::expect_all_free() {
  const auto deadline = Deadline::after(kPatience);
  // An order after the end of the last transfer frees the pages, and nothing announces it.
  while (held_pages() > 0 && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(held_pages(), 0);
}

}  // namespace tributary::test
