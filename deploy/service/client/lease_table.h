// The leases that a client renews, and when. It does no input or output; times are passed in.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "deploy/service/protocol/admission.h"

namespace tributary {

/// Renews a lease each time a third of it has passed. A handle with another token is another's:
/// what is done with one leaves the other as it is. A handle of an earlier epoch than the kept one
/// is out of date, and changes nothing.
class LeaseTable {
 public:
  /// A sequence that the control plane has just given.
  void keep(const SequenceHandle& sequence, Time now);
  /// A lease that another client had, and that may be near its end: renewed at once.
  void take_over(const SequenceHandle& sequence, Time now);
  /// Takes the handle's new epoch if the sequence is kept; otherwise does nothing.
  void update(const SequenceHandle& sequence);
  void forget(const SequenceHandle& sequence);

  /// When take_due() has something; no value while nothing is kept.
  [[nodiscard]] std::optional<Time> next() const;

  struct Renewal {
    SequenceHandle sequence;
    /// No worker has confirmed its token yet: it travels in a message of its own, whose refusal
    /// says nothing about others.
    bool alone = false;
  };
  struct Round {
    std::vector<Renewal> due;
    Time began;
    Duration patience{};  // for the answers
  };
  /// The renewals that are due at `now`, or within a fifth of their period.
  [[nodiscard]] Round take_due(Time now);
  /// The answer to one renewal of a round: `home` is the sequence's now. A sequence that its pool
  /// no longer knows is forgotten: the next call for it reports what happened.
  void answered(const Renewal& renewal, ErrorCode code, std::int32_t home, Time began);

 private:
  struct Kept {
    SequenceHandle sequence;
    Time due;
    bool confirmed = false;
  };
  using Key = std::pair<SequenceId, wire::Token>;
  static Key key_of(const SequenceHandle& sequence) { return {sequence.id, sequence.token}; }

  std::map<Key, Kept> kept_;
};

}  // namespace tributary
