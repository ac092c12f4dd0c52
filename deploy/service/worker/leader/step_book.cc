#include "deploy/service/worker/leader/step_book.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/limits.h"
#include "core/cache/leaves.h"

namespace tributary {
namespace {

template <typename... Args>
wire::Outcome refusal(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}

/// The sequence is unknown, or not the version that the client holds.
wire::Outcome check_version(SequenceId id, std::uint32_t epoch, const Sequence* s) {
  if (s == nullptr) {
    return refusal(ErrorCode::kNotFound, "sequence {}: not here, or it has ended", id);
  }
  const Status status = check_epoch(*s, epoch);
  return {status.code(), status.message()};
}

}  // namespace

std::vector<Extent> holders(const Sequence& sequence, std::int64_t tokens, int leaf_tokens) {
  std::vector<Extent> extents;
  const auto add = [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
    extents.push_back({begin * leaf_tokens, std::min(end * leaf_tokens, tokens), owner});
  };
  for_each_owner_run(sequence, ceil_div(tokens, leaf_tokens), add);
  return extents;
}

StepBook::Owner& StepBook::expect(std::vector<Owner>& owners, std::int32_t rank,
                                  std::uint32_t since, std::int64_t position) {
  const auto known = std::ranges::find(owners, rank, &Owner::rank);
  if (known != owners.end()) return *known;
  return owners.emplace_back(Owner{.rank = rank, .since = since, .missing_position = position});
}

void StepBook::add(const Sequence& sequence, Idempotency idempotency, Time now) {
  remove(sequence.id);
  Entry entry{.extents = holders(sequence, sequence.prompt_tokens, leaf_tokens_),
              .shares = {},
              .owners = {},
              .incomplete = 0,
              .step = {},
              .waiting = false,
              .idempotency = std::move(idempotency),
              .last = now};
  const auto count = [&](const Leaf& leaf, const LeafPart& part) {
    entry.shares.resize(static_cast<std::size_t>(part.leaf) + 1);
    entry.shares.back() = {leaf.owner, part.rows()};
    expect(entry.owners, leaf.owner, sequence.epoch, part.begin).total += layers_ * part.rows();
  };
  for_each_leaf(sequence, sequence.present_tokens, sequence.prompt_tokens, leaf_tokens_, count);
  entry.incomplete = entry.owners.size();
  if (entry.incomplete > 0) ++filling_;
  entries_.emplace(sequence.id, std::move(entry));
}

void StepBook::remove(SequenceId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  if (found->second.step) --open_steps_;
  if (found->second.incomplete > 0) --filling_;
  entries_.erase(found);
}

bool StepBook::progress(const wire::Progress& progress) {
  const auto found = entries_.find(progress.sequence_id);
  if (found == entries_.end()) return false;
  Entry& entry = found->second;
  const auto owner = std::ranges::find(entry.owners, progress.rank, &Owner::rank);
  const bool expected = owner != entry.owners.end() && !owner->complete() &&
                        progress.epoch >= owner->since &&
                        (!owner->renewed || progress.rows_total == owner->total);
  if (expected) {
    owner->done = progress.rows_done;
    owner->missing_layer = progress.missing_layer;
    owner->missing_position = progress.missing_position;
    if (owner->complete() && --entry.incomplete == 0) --filling_;
  }
  return entry.incomplete == 0;
}

/// Each owner says again how its rows stand when it has carried out the order of the change.
void StepBook::lost(const Sequence& sequence, std::span<const std::int32_t> lost) {
  Entry& entry = entries_.at(sequence.id);
  if (entry.incomplete > 0) --filling_;
  entry.extents = holders(sequence, sequence.prompt_tokens, leaf_tokens_);
  entry.shares.resize(std::max(entry.shares.size(), sequence.leaves.size()));
  for (const std::int32_t leaf : lost) {
    const std::int64_t begin = std::int64_t{leaf} * leaf_tokens_;
    const auto i = static_cast<std::size_t>(leaf);
    entry.shares[i] = {sequence.leaves[i].owner,
                       std::min<std::int64_t>(leaf_tokens_, sequence.length - begin)};
  }
  entry.owners.clear();
  for (std::size_t i = 0; i < entry.shares.size(); ++i) {
    const auto [rank, rows] = entry.shares[i];
    if (rows == 0) continue;
    Owner& owner =
        expect(entry.owners, rank, sequence.epoch, static_cast<std::int64_t>(i) * leaf_tokens_);
    owner.total += layers_ * rows;
    owner.renewed = true;
  }
  entry.incomplete = entry.owners.size();
  if (entry.incomplete > 0) ++filling_;
}

void StepBook::lose_worker(int rank) {
  for (auto& [id, entry] : entries_) {
    for (Share& share : entry.shares) {
      if (share.rank == rank) share = {};
    }
  }
}

std::string StepBook::missing(const Entry& entry) {
  std::string text;
  for (const Owner& owner : entry.owners) {
    if (owner.complete()) continue;
    // The first few tell enough; a sequence may be spread over hundreds of workers.
    if (text.size() > 200) return text + ", ...";
    if (!text.empty()) text += ", ";
    if (owner.rank == kNoWorker) {
      text += fmt::format("rows from {} on wait for room", owner.missing_position);
      continue;
    }
    text +=
        fmt::format("worker {} has {} of {} rows, first missing layer {} position {}", owner.rank,
                    owner.done, owner.total, owner.missing_layer, owner.missing_position);
  }
  return text;
}

std::string StepBook::missing(SequenceId id) const {
  return missing(entries_.at(id));
}

std::string StepBook::missing_layers(const Step& step) const {
  std::string text;
  for (int layer = 0; layer < layers_; ++layer) {
    if (step.done[static_cast<std::size_t>(layer)]) continue;
    if (text.size() > 60) return text + ", ...";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", layer);
  }
  return text;
}

void StepBook::decide_commit(const Entry& entry, std::int64_t length, Decision& decision) const {
  const Step& step = *entry.step;
  if (length < step.base || length > step.base + step.tokens) {
    decision.outcome = refusal(ErrorCode::kFailedPrecondition,
                               "length {} does not lie in the open step, which goes from {} to {}",
                               length, step.base, step.base + step.tokens);
  } else if (length > step.base && entry.waiting) {
    decision.outcome = refusal(ErrorCode::kFailedPrecondition,
                               "a layer of the open step from {} to {} has not ended", step.base,
                               step.base + step.tokens);
  } else if (length > step.base && step.layers_left > 0) {
    decision.outcome =
        refusal(ErrorCode::kFailedPrecondition, "the open step at {} has not run layer{} {}",
                step.base, step.layers_left == 1 ? "" : "s", missing_layers(step));
  } else {
    decision.commit = static_cast<std::int32_t>(length - step.base);
  }
}

StepBook::Decision StepBook::decide(const StepItem& item, const Sequence* sequence) const {
  Decision decision{.outcome = check_version(item.id, item.epoch, sequence),
                    .commit = {},
                    .open = false,
                    .filling = false};
  if (!decision.outcome.ok()) return decision;
  const Entry& entry = entries_.at(item.id);
  wire::Outcome& outcome = decision.outcome;
  if (item.layer < 0 || item.layer >= layers_) {
    outcome =
        refusal(ErrorCode::kInvalidArgument, "layer {}, expected 0 .. {}", item.layer, layers_ - 1);
  } else if (item.tokens < 1 || item.tokens > kMaxStepTokens) {
    outcome = refusal(ErrorCode::kInvalidArgument, "{} new tokens, expected 1 .. {}", item.tokens,
                      kMaxStepTokens);
  } else if (item.base_length < 0 || item.base_length > sequence->limit_tokens - item.tokens) {
    outcome = refusal(ErrorCode::kInvalidArgument,
                      "{} + {} tokens exceed the limit of {} that was admitted", item.base_length,
                      item.tokens, sequence->limit_tokens);
  } else if (entry.incomplete > 0) {
    decision.filling = true;
    outcome = refusal(ErrorCode::kFailedPrecondition, "not ready: {}", missing(entry));
  } else if (entry.waiting) {
    outcome = refusal(ErrorCode::kFailedPrecondition,
                      "another layer of sequence {} waits for its round", sequence->id);
  } else if (!entry.step) {
    decision.open = true;
    if (item.base_length != sequence->length) {
      outcome = refusal(ErrorCode::kFailedPrecondition, "base length {}, the sequence has {}",
                        item.base_length, sequence->length);
    }
  } else if (item.base_length == entry.step->base) {
    if (item.tokens != entry.step->tokens) {
      outcome = refusal(ErrorCode::kFailedPrecondition,
                        "{} tokens, the open step at {} has {}; commit or abort it first",
                        item.tokens, item.base_length, entry.step->tokens);
    }
  } else {
    decision.open = true;
    decide_commit(entry, item.base_length, decision);
  }
  return decision;
}

StepBook::Decision StepBook::decide(const wire::ControlItem& item, const Sequence* sequence) const {
  Decision decision{.outcome = check_version(item.sequence_id, item.epoch, sequence),
                    .commit = {},
                    .open = false,
                    .filling = false};
  const bool any_epoch = item.op == wire::ControlOp::kRenew || item.op == wire::ControlOp::kReady ||
                         item.op == wire::ControlOp::kFree;
  // Who waits for rows that were lost would wait for ever.
  const bool waits =
      item.op == wire::ControlOp::kReady && decision.outcome.code == ErrorCode::kWorkerLost;
  if (any_epoch && sequence != nullptr && !waits) decision.outcome = {};
  if (sequence == nullptr || !decision.outcome.ok()) return decision;
  const Entry& entry = entries_.at(item.sequence_id);
  wire::Outcome& outcome = decision.outcome;
  switch (item.op) {
    case wire::ControlOp::kRenew:
    case wire::ControlOp::kExtend:
    case wire::ControlOp::kFree:
      break;
    case wire::ControlOp::kName:
      if (entry.incomplete > 0) {
        outcome = refusal(ErrorCode::kFailedPrecondition, "names of blocks: not ready: {}",
                          missing(entry));
      }
      break;
    case wire::ControlOp::kReady:
      if (entry.incomplete > 0) {
        outcome = refusal(ErrorCode::kUnavailable, "sequence {}: {}", sequence->id, missing(entry));
      }
      break;
    case wire::ControlOp::kCommit:
      if (entry.step) {
        decide_commit(entry, item.length, decision);
      } else if (item.length != sequence->length) {
        outcome = refusal(ErrorCode::kFailedPrecondition,
                          "commit to length {}: no step is open, the sequence has {}", item.length,
                          sequence->length);
      }
      break;
    case wire::ControlOp::kTruncate:
      if (entry.step) {
        outcome = refusal(ErrorCode::kFailedPrecondition,
                          "truncate to {}: a step is open at {}; commit or abort it first",
                          item.length, entry.step->base);
      } else if (entry.incomplete > 0) {
        outcome = refusal(ErrorCode::kFailedPrecondition, "truncate to {}: not ready: {}",
                          item.length, missing(entry));
      } else if (item.length < 0 || item.length > sequence->length) {
        outcome = refusal(ErrorCode::kInvalidArgument, "truncate to {}, the sequence has {}",
                          item.length, sequence->length);
      }
      break;
  }
  return decision;
}

void StepBook::opened(const StepItem& item, Time now) {
  entries_.at(item.id).step = Step{.base = item.base_length,
                                   .tokens = item.tokens,
                                   .layers_left = layers_,
                                   .done = std::vector<bool>(static_cast<std::size_t>(layers_)),
                                   .opened = now};
  ++open_steps_;
}

void StepBook::set_waiting(SequenceId id, bool waiting) {
  entries_.at(id).waiting = waiting;
}

void StepBook::ran(const StepItem& item) {
  const auto found = entries_.find(item.id);
  if (found == entries_.end() || !found->second.step) return;
  Step& step = *found->second.step;
  if (step.base != item.base_length || step.tokens != item.tokens) return;
  const auto l = static_cast<std::size_t>(item.layer);
  if (!step.done[l]) --step.layers_left;
  step.done[l] = true;
}

StepBook::Closed StepBook::closed(SequenceId id, bool committed, Time now) {
  Entry& entry = entries_.at(id);
  const Closed closed{
      .opened = entry.step->opened, .before = entry.last, .first_commit = !entry.committed};
  entry.step.reset();
  entry.waiting = false;
  --open_steps_;
  if (committed) {
    entry.last = now;
    entry.committed = true;
  }
  return closed;
}

SequenceState StepBook::state(SequenceId id) const {
  const Entry& entry = entries_.at(id);
  if (entry.incomplete > 0) return SequenceState::kFilling;
  return entry.step ? SequenceState::kStepping : SequenceState::kReady;
}

std::vector<SequenceId> StepBook::ids() const {
  std::vector<SequenceId> ids;
  ids.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  return ids;
}

}  // namespace tributary
