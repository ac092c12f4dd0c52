// A request to a worker, from its call to its answer. Used only inside deploy/service/client.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "comm/transport/message_condition.h"
#include "comm/wire/access_token.h"
#include "core/base/deadline.h"
#include "core/base/error.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary {

/// A worker's answer to one request.
using WorkerReply = std::variant<std::monostate, wire::RowsReply, wire::PullReply, wire::LayerReply,
                                 wire::ControlReply>;

/// A sequence as a connection serves it.
struct Greeting {
  PoolShape shape;
  std::uint64_t sequence_id = 0;
  wire::Token token{};
};

/// What travels with a message to a worker.
struct WorkerMessage {
  std::string address;
  /// The request's sequences, not empty. One opens the connection, where there is none: they are
  /// tried one after the other, from the last on, until the worker welcomes one, so that one that
  /// the worker does not know, of an earlier pool at its address, does not keep the others out. The
  /// others are proven on it.
  std::vector<Greeting> greetings;
  /// The caller's memory, like the places of landing(). It is not touched any more when the request
  /// has ended and `in_use` is 0.
  std::vector<std::span<const std::byte>> payload = {};
  /// Gives the places for the payload of a reply, in order; called while the request has not ended.
  /// Empty: the reply has no payload.
  std::function<std::vector<std::span<std::byte>>(const WorkerReply&)> landing = {};
  /// A connection that ends before the answer leaves open whether the worker has done it. Done
  /// again, it changes nothing: it is sent again.
  bool repeatable = true;
  /// `pool_full` for all of it says that the worker is behind, and has done nothing: it is sent
  /// again. An extension may find no room for its rows, which is an answer.
  bool waits_for_room = true;
  /// An earlier message for the same, to another worker, was sent again: one may still wait there.
  bool sent_before = false;
};

/// One request to one worker. Its call fills in the first part and then leaves it alone; the rest
/// belongs to the connections, under their mutex.
struct WorkerRequest : WorkerMessage {
  /// Shared by the requests of one call.
  struct Call {
    MessageCondition changed;
    bool failed = false;  // some request of it, or refused
  };

  std::uint64_t number = 0;  // as in `header`
  wire::MessageType type{};
  std::vector<std::byte> header;
  std::size_t reserved = 0;  // bytes of the budget, given back at its end
  std::shared_ptr<Call> call;

  Time since;                   // when it was given to the connections
  PeerId peer = 0;              // since it was sent
  std::atomic<int> in_use = 0;  // by the transport: the payload, the reply's places
  int repeats = 0;              // how often it was sent again
  Status refusal;               // the last reason to wait and try again
  std::atomic<bool> done = false;
  Status status;
  WorkerReply reply;
};

}  // namespace tributary
