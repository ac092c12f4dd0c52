// The part of calls that all backends share: check each once, and split those that a backend does
// not fuse.
#include "core/interface/backend.h"

#include <variant>

#include "core/base/error.h"
#include "core/interface/validate.h"

namespace tributary {
namespace {

void check_calls(std::span<const Call> calls) {
  for (const Call& call : calls) check_call(call);
}

}  // namespace

void Backend::call(const Call& call) {
  check_call(call);
  hand_on(call);
}

void Backend::call(std::span<const Call> calls) {
  for (const Call& one : calls) call(one);
}

void Backend::hand_on(const Call& call) {
  if (std::visit([](const auto& args) { return args.empty(); }, call) || do_call(call)) return;
  if (const auto* rows = std::get_if<LatentRowsArgs>(&call)) {
    hand_on(rows->norm);
    hand_on(rows->rope);
    return;
  }
  if (const auto* both = std::get_if<AttendMergeArgs>(&call)) {
    hand_on(both->attend);
    hand_on(both->merge);
    return;
  }
  fail(ErrorCode::kUnsupported, "backend {} does not do {}", name(), call_name(call));
}

std::unique_ptr<Recording> Backend::record(std::span<const Call> calls) {
  check_calls(calls);
  return do_record(calls);
}

bool Backend::refill(Recording& recording, std::span<const Call> calls) {
  check_calls(calls);
  return do_refill(recording, calls);
}

}  // namespace tributary
