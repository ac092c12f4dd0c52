#include "core/sequencer/move_book.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace tributary {
namespace {

auto find(auto& moves, SequenceId id) {
  return std::ranges::find_if(moves, [id](const RunningMove& m) { return m.move.id == id; });
}

}  // namespace

MoveBook::MoveBook(int layers) : layers_(layers) {
  if (layers < 1) {
    fail(ErrorCode::kInvalidArgument, "moves: {} layers, expected at least 1", layers);
  }
}

bool MoveBook::contains(SequenceId id) const {
  return find(moves_, id) != moves_.end();
}

std::int64_t MoveBook::page_copies(const RunningMove& move) const {
  return static_cast<std::int64_t>(move.from_pages.size()) * layers_;
}

void MoveBook::begin(RunningMove move) {
  if (contains(move.move.id)) {
    fail(ErrorCode::kAlreadyExists, "leaves of sequence {} are moving already", move.move.id);
  }
  if (move.from_pages.empty() || move.from_pages.size() != move.to_pages.size()) {
    fail(ErrorCode::kInternal, "move of sequence {}: {} pages to {}", move.move.id,
         move.from_pages.size(), move.to_pages.size());
  }
  moves_.push_back(std::move(move));
}

std::int64_t MoveBook::next_copies(std::int64_t most, std::vector<PageCopy>& copies) {
  std::int64_t count = 0;
  for (RunningMove& move : moves_) {
    for (; count < most && move.ordered < page_copies(move); ++move.ordered, ++count) {
      const auto page = static_cast<std::size_t>(move.ordered / layers_);
      copies.push_back({.from = move.from,
                        .from_page = move.from_pages[page],
                        .to = move.move.to,
                        .to_page = move.to_pages[page],
                        .layer = static_cast<std::int32_t>(move.ordered % layers_)});
    }
  }
  return count;
}

void MoveBook::taken() {
  for (RunningMove& move : moves_) move.taken = move.ordered;
}

MoveBook::Ended MoveBook::ended(bool ok) {
  Ended ended;
  std::vector<RunningMove> rest;
  for (RunningMove& move : moves_) {
    const bool failed = !ok && move.taken > move.copied;
    if (ok) move.copied = move.taken;
    if (failed) {
      ended.failed.push_back(std::move(move));
    } else if (move.copied == page_copies(move)) {
      ended.completed.push_back(std::move(move));
    } else {
      rest.push_back(std::move(move));
    }
  }
  moves_ = std::move(rest);
  return ended;
}

std::optional<RunningMove> MoveBook::remove(SequenceId id) {
  const auto found = find(moves_, id);
  if (found == moves_.end()) return std::nullopt;
  RunningMove move = std::move(*found);
  moves_.erase(found);
  return move;
}

}  // namespace tributary
