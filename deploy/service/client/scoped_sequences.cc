#include "deploy/service/client/scoped_sequences.h"

#include <vector>

#include "core/base/error.h"

namespace tributary {

ScopedSequences::~ScopedSequences() {
  // A tier that is gone must not delay a program's exit.
  constexpr std::chrono::seconds kTimeout{2};
  static_cast<void>(status_of([&] { free(Deadline::after(kTimeout)); }));
}

SequenceHandle& ScopedSequences::add(const SequenceHandle& sequence) {
  return sequences_.emplace_back(sequence);
}

void ScopedSequences::free(std::optional<Deadline> deadline) {
  std::vector<const SequenceHandle*> all;
  for (const SequenceHandle& sequence : sequences_) all.push_back(&sequence);
  client_.free(all, deadline);
  sequences_.clear();
}

}  // namespace tributary
