#include "deploy/service/client/worker_call.h"

#include <utility>

namespace tributary {

WorkerCall::~WorkerCall() {
  connections_.release(requests_, deadline_);
  connections_.budget().give_back(reserved_);
}

std::size_t WorkerCall::send(Message message) {
  auto request = std::make_shared<WorkerRequest>();
  request->address = message.address;
  request->greetings = std::move(message.greetings);
  request->number = connections_.next_number();
  request->type = message.type;
  request->header = message.encode(request->number);
  request->payload = std::move(message.payload);
  request->landing = std::move(message.landing);
  request->repeatable = message.repeatable;
  request->reserved = std::exchange(reserved_, 0);
  request->call = call_;
  requests_.push_back(request);
  connections_.send(request);
  return requests_.size() - 1;
}

bool WorkerCall::reserve(std::size_t bytes) {
  if (!connections_.budget().take(bytes, deadline_)) return false;
  reserved_ += bytes;
  return true;
}

Status WorkerCall::wait(std::size_t index) {
  return connections_.wait(*requests_[index], deadline_);
}

}  // namespace tributary
