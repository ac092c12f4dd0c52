// Handles layer requests and controls of clients at their sequences' home: passes items that may
// run to the leader and refuses the rest one by one.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "comm/transport/transport.h"
#include "core/base/error.h"
#include "core/interface/clock.h"
#include "core/pool/ingest_table.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/worker/home/access_check.h"
#include "deploy/service/worker/home/home_queue.h"
#include "deploy/service/worker/home/leader_port.h"
#include "deploy/service/worker/home/peers.h"
#include "deploy/service/worker/home/pool_model.h"
#include "deploy/service/worker/home/relays.h"

namespace tributary {

/// Used by the transport's thread.
class Home {
 public:
  /// All outlive the home.
  Home(int rank, const PoolModel& model, const AccessCheck& access, const IngestTable& sequences,
       Peers& peers, HomeQueue& queue, Relays& relays, LeaderPort& leader, Clock& clock)
      : rank_(rank),
        model_(model),
        access_(access),
        sequences_(sequences),
        peers_(peers),
        queue_(queue),
        relays_(relays),
        leader_(leader),
        clock_(clock) {}

  /// Returns the place for the payload; no value if the whole request was refused and answered.
  [[nodiscard]] std::optional<Landing> receive(PeerId peer, const wire::LayerRequest& request,
                                               std::size_t payload_bytes);
  void receive(PeerId peer, const wire::Control& control);

 private:
  /// An error here refuses the whole request: no item's payload can be located.
  [[nodiscard]] Status check(const wire::LayerRequest& request, std::size_t payload_bytes) const;
  /// Why an item may not run.
  struct Verdict {
    Status status;
    std::int32_t home = -1;  // unless it is -1: another worker is the sequence's
  };
  [[nodiscard]] Verdict check(PeerId peer, const StepItem& item) const;
  /// Checks the rows of an item's tokens, and the positions that these select.
  [[nodiscard]] Status check_input(const HomeRequest& request, std::size_t item) const;
  /// `crc`: of what has landed.
  void landed(const std::shared_ptr<HomeRequest>& request, std::uint32_t crc, const Status& status);
  void refuse(PeerId peer, const wire::LayerRequest& request, const Status& status);
  /// One reason for each item.
  void refuse(PeerId peer, const wire::LayerRequest& request, const std::vector<Verdict>& reasons);

  const int rank_;
  const PoolModel& model_;
  const AccessCheck& access_;
  const IngestTable& sequences_;
  Peers& peers_;
  HomeQueue& queue_;
  Relays& relays_;
  LeaderPort& leader_;
  Clock& clock_;
};

/// HomeQueue::Reply: the request is held until its output may be used again.
void send_reply(Peers& peers, const std::shared_ptr<HomeRequest>& request);

}  // namespace tributary
