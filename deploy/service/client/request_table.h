// The requests that have no answer yet: which of them are sent again, when, and whom they wait for.
// It does no input or output; times are passed in.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deploy/service/client/worker_absences.h"
#include "deploy/service/client/worker_request.h"

namespace tributary {

/// A worker for whose answer, or for a connection to which, requests have waited for a long time.
struct SilentWorker {
  static constexpr std::size_t kMostNamed = 64;
  std::string address;
  std::vector<Greeting> greetings;  // of some sequences there, each once
};

class RequestTable {
 public:
  using Request = std::shared_ptr<WorkerRequest>;
  static constexpr std::chrono::milliseconds kSilence{500};

  void add(const Request& request, Time now);
  /// Null for one that has ended.
  [[nodiscard]] Request find(std::uint64_t number) const;
  /// It has ended: forgets it.
  void remove(std::uint64_t number) { pending_.erase(number); }
  /// Those that were sent on the connection, and not to be sent again.
  [[nodiscard]] std::vector<Request> sent_to(PeerId peer) const;
  [[nodiscard]] std::vector<Request> at(const std::string& address) const;

  /// The request comes again at `when`.
  void repeat(const Request& request, Time when, Status reason);
  /// Whether the reply says that the request is to come again; then it will.
  [[nodiscard]] bool repeats(const Request& request, const WorkerReply& reply, Time now);
  /// Requests whose time has come.
  [[nodiscard]] std::vector<Request> take_due(Time now);
  /// When take_due() has something.
  [[nodiscard]] Time next_due() const;

  /// Those that have not answered for kSilence, and those to which a connection has just failed.
  [[nodiscard]] std::vector<SilentWorker> silent(Time now) const;
  [[nodiscard]] WorkerAbsences& absences() noexcept { return absences_; }

 private:
  std::map<std::uint64_t, Request> pending_;  // by number: the oldest first
  std::multimap<Time, Request> later_;
  WorkerAbsences absences_;
};

/// The status of a request whose deadline has passed: the last reason to try again, if there is
/// one.
[[nodiscard]] Status late_status(const WorkerRequest& request);

}  // namespace tributary
