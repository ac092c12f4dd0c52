// The requests of clients to this home: where the payload of each item lies and where its output
// goes, until all items of a request have ended and its answer is on its way.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"
#include "core/base/deadline.h"
#include "core/base/raw_bytes.h"
#include "core/plan/plan.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

/// One layer request of one client.
struct HomeRequest {
  PeerId peer = 0;
  wire::LayerRequest asked;
  Time arrival{};
  std::size_t input_bytes = 0;           // of one token
  std::size_t output_bytes = 0;          // of one token
  std::vector<std::size_t> first_token;  // first token of each item, then the sum: offsets in both
                                         // buffers
  RawBytes input, output;
  wire::LayerReply reply;                                     // of the items that have ended
  std::vector<bool> ended;                                    // by item
  std::size_t running = 0;                                    // items that have not ended
  std::uint64_t ticket = 0;                                   // that submit() gave it
  std::vector<std::pair<std::uint64_t, std::size_t>> shares;  // bytes held for each sequence

  /// Returns false if the item had ended before. `home`, unless it is -1, is the worker that has
  /// become its sequence's.
  bool end(std::size_t item, ErrorCode code, const std::string& text, std::int32_t home = -1);
  [[nodiscard]] std::span<const std::byte> input_of(std::size_t item) const;
  [[nodiscard]] std::span<std::byte> output_of(std::size_t item) const;
};

/// An item of a request, and its place in the round that runs it.
struct Claim {
  std::shared_ptr<HomeRequest> request;
  std::size_t item = 0;
  const HomedItem* homed = nullptr;

  [[nodiscard]] wire::LayerMode mode() const noexcept { return request->asked.mode; }
  [[nodiscard]] std::int32_t layer() const { return request->asked.items[item].layer; }
  [[nodiscard]] std::span<const std::byte> input() const { return request->input_of(item); }
  [[nodiscard]] std::span<std::byte> output() const { return request->output_of(item); }
};

/// Used by the thread that receives messages (open, submit, refuse) and by the worker's (claim,
/// finish).
class HomeQueue {
 public:
  /// Sends the answer to a request whose items have all ended; the buffers are valid as long as the
  /// request is held. Called from either thread, with no lock held.
  using Reply = std::function<void(const std::shared_ptr<HomeRequest>&)>;
  HomeQueue(std::size_t max_bytes, Reply reply);
  ~HomeQueue();
  HomeQueue(const HomeQueue&) = delete;
  HomeQueue& operator=(const HomeQueue&) = delete;

  /// Makes room for a request and its output; null if more than max_bytes would be held, or an
  /// eighth of them for one sequence that holds some already. Item i counts for the sequence of
  /// item payer(i). The room is given back when the last pointer to the request goes.
  [[nodiscard]] std::shared_ptr<HomeRequest> open(
      PeerId peer, wire::LayerRequest asked, Time arrival, std::size_t input_bytes,
      std::size_t output_bytes,
      const std::function<std::size_t(std::size_t)>& payer = [](std::size_t i) { return i; });
  /// The request's payload has arrived: its items that have not ended, at least one, can be
  /// claimed. Returns its ticket.
  [[nodiscard]] std::uint64_t submit(std::shared_ptr<HomeRequest> request);
  /// These items of a ticket will not run. Unknown items, and those that have ended, are ignored.
  void refuse(const wire::ItemsRefused& refused);

  /// Claims the item that the leader has put into a round; `request` is null if there is none. If a
  /// client has sent the item twice, claims the older: the leader runs that one and refuses the
  /// later one. `homed` outlives the claim.
  [[nodiscard]] Claim claim(const HomedItem& homed, std::int32_t layer);
  /// A claimed item has run (its output is written) or has failed.
  void finish(const Claim& claim, const Status& status);

  /// Those of `items` that wait here, by ticket, as they were submitted, with the time that is
  /// left.
  [[nodiscard]] std::vector<wire::Items> waiting(std::span<const StepItem> items, Time now);

  /// Bytes of all requests that are held.
  [[nodiscard]] std::size_t bytes() const;
  /// Requests that open() found no room for, so far.
  [[nodiscard]] std::uint64_t refused() const;

 private:
  using Key = std::pair<SequenceId, std::int32_t>;  // and the layer
  struct Memory;

  [[nodiscard]] const Claim* find(const StepItem& item) const;
  /// Call under the lock. Returns true when the request's last item has ended.
  bool end(const Claim& claim, ErrorCode code, const std::string& message, std::int32_t home = -1);

  Reply reply_;
  std::shared_ptr<Memory> memory_;
  std::mutex mutex_;  // guards what follows
  std::uint64_t last_ticket_ = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<HomeRequest>> requests_;  // by ticket
  std::map<Key, std::vector<Claim>> claims_;  // that can be made, the oldest first
};

/// Completes the request's reply, and returns its payload: the outputs of the items that succeeded,
/// in place.
[[nodiscard]] std::vector<std::span<const std::byte>> finish_reply(HomeRequest& request);

}  // namespace tributary
