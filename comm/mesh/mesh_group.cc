#include "comm/mesh/mesh_group.h"

#include <algorithm>

namespace tributary::mesh {

std::span<std::byte> MeshGroup::place(int from, const MeshBlock& block, std::size_t bytes) {
  if (block.number <= completed_ || block.number > completed_ + 2) {
    fail(ErrorCode::kMalformedInput, "rank {} sends a block of call {}, expected {} or {}", from,
         block.number, completed_ + 1, completed_ + 2);
  }
  if (block.kind >= kCollectiveKinds.size()) {
    fail(ErrorCode::kMalformedInput, "rank {} sends a block of kind {}, expected 0 .. {}", from,
         block.kind, kCollectiveKinds.size() - 1);
  }
  Place& place = at(from, block.number);
  if (place.number != 0) {
    fail(ErrorCode::kMalformedInput, "rank {} sends a second block of call {}", from, block.number);
  }
  place.number = block.number;
  place.kind = static_cast<CollectiveKind>(block.kind);
  place.whole = bytes == 0;
  return place.bytes.resize(bytes);
}

void MeshGroup::arrived(int from, std::uint64_t number) {
  Place& place = at(from, number);
  place.whole = place.number == number;
}

bool MeshGroup::has(int from, std::uint64_t number) const {
  const Place& place = at(from, number);
  return place.number == number && place.whole;
}

std::span<const std::byte> MeshGroup::block(int from, std::uint64_t number) const {
  return at(from, number).bytes.span();
}

CollectiveKind MeshGroup::kind(int from, std::uint64_t number) const {
  return at(from, number).kind;
}

void MeshGroup::release(std::uint64_t number) {
  completed_ = number;
  for (Places& places : places_) {
    Place& place = places[number % 2];
    if (place.number == number) place.number = 0;
  }
}

}  // namespace tributary::mesh
