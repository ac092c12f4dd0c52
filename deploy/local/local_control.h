// The control plane of one pool in its own process: it decides as for any pool, without HTTP.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/interface/clock.h"
#include "core/interface/condition.h"
#include "deploy/service/client/control_plane.h"
#include "deploy/service/control/admissions.h"
#include "deploy/service/control/held_sequences.h"
#include "deploy/service/control/pool_calls.h"
#include "deploy/service/control/pool_registry.h"
#include "deploy/service/worker/leader/control_channel.h"

namespace tributary {

/// Any thread may call any function.
class LocalControl final : public ControlPlane {
 public:
  /// The clock, by which calls wait for their deadlines, outlives this object.
  explicit LocalControl(Clock& clock);

  /// The pool's side: a ConnectControl, for one pool. The channel is destroyed before this object.
  [[nodiscard]] std::unique_ptr<ControlChannel> connect(RegisterPool pool,
                                                        ControlLinkHandlers handlers);
  /// Asks the pool to end; has no effect without one.
  void terminate();
  /// Tells that the pool has ended for this reason. All pending requests to it end too. Later calls
  /// report the reason.
  void lose(const Status& reason);
  /// Throws kPoolLost without a pool.
  [[nodiscard]] Heartbeat heartbeat();

  [[nodiscard]] SequenceHandle admit(const AdmitRequest& wanted, Deadline deadline) override;
  [[nodiscard]] SequenceHandle query(SequenceId id, Deadline deadline) override;
  void free(SequenceId id, const std::string& pool, Deadline deadline) override;
  [[nodiscard]] std::vector<std::string> workers(Deadline deadline) override;

 private:
  class Channel;

  /// `ask` gives its argument the answer, with the mutex held, now or later. If that has not
  /// happened by the deadline, `give_up` is called, with the mutex held.
  template <typename Answer>
  Answer wait(Deadline deadline, const std::function<void(std::function<void(Answer)>)>& ask,
              const std::function<void()>& give_up = {});
  // Call with the mutex held.
  void call(const std::string& pool, ToPool message, Time deadline, PoolCalls::Done done);
  void check_pool() const;
  void tell(const FromPool& word);
  void disconnect();

  Clock& clock_;
  std::mutex mutex_;  // guards what follows
  Condition answered_;
  std::string name_;  // of the pool
  std::optional<ControlLinkHandlers> handlers_;
  Status lost_;
  PoolRegistry registry_;
  PoolCalls calls_;
  Admissions admissions_;
  HeldSequences held_;
};

}  // namespace tributary
