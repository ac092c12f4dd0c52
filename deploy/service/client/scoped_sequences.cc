#include "deploy/service/client/scoped_sequences.h"

#include "core/base/error.h"

namespace tributary {

ScopedSequences::~ScopedSequences() {
  // The limit is for all together: a tier that is gone must not delay a program's exit.
  constexpr std::chrono::seconds kTimeout{2};
  const Deadline deadline = Deadline::after(kTimeout);
  for (const SequenceHandle& sequence : sequences_) {
    const Status freed = status_of([&] { client_.free(sequence, deadline); });
    if (!freed.ok()) break;
  }
}

SequenceHandle& ScopedSequences::add(const SequenceHandle& sequence) {
  return sequences_.emplace_back(sequence);
}

void ScopedSequences::free() {
  while (!sequences_.empty()) {
    client_.free(sequences_.front());
    sequences_.pop_front();
  }
}

}  // namespace tributary
