#include "tests/deploy/service/client/fake_control.h"

#include "core/base/dtype.h"

namespace tributary::test {

FakeControl::FakeControl()
    : server_(loop_, {},
              {.request =
                   [this](const HttpRequest& request, HttpRespond respond) {
                     {
                       const std::scoped_lock lock(mutex_);
                       requests_.push_back(request);
                     }
                     respond(answer(request));
                   },
               .may_upgrade = {},
               .upgraded = {}}),
      thread_([this] { loop_.run(); }) {}

FakeControl::~FakeControl() {
  loop_.stop();
  thread_.join();
}

std::vector<HttpRequest> FakeControl::requests() {
  const std::scoped_lock lock(mutex_);
  return requests_;
}

HttpResponse error_response(int status, const std::string& code) {
  HttpResponse response;
  response.status = status;
  response.body = R"({"error": {"code": ")" + code + R"(", "message": "why"}})";
  return response;
}

SequenceHandle sample_answer() {
  SequenceHandle answer;
  answer.id = 77;
  answer.epoch = 1;
  answer.prompt_tokens = 5;
  answer.max_new_tokens = 6;
  answer.length = 5;
  answer.state = SequenceState::kReady;
  answer.extents = {{0, 5, 0}};
  answer.pool = "p";
  answer.lease_ms = 1000;
  answer.addresses = {"tcp://127.0.0.1:1"};
  answer.shape.heads = 2;
  answer.shape.kv_lora_rank = 4;
  answer.shape.qk_rope_head_dim = 2;
  answer.shape.layers = 1;
  answer.shape.leaf_tokens = 64;
  answer.shape.row_format = RowFormat::kF32;
  answer.shape.query_dtype = DType::kF32;
  answer.shape.softmax_scale = 0.5F;
  return answer;
}

}  // namespace tributary::test
