// The memory that a worker takes from the system and returns to it.
#pragma once

#include "core/interface/backend.h"

namespace tributary {

/// Writes every page of a cache in host memory, because the system allocates a page only at its
/// first write. A machine without the memory then ends its worker at the start and not in the
/// middle of a prompt, no row pays for a fault, and the memory of a worker that serves does not
/// grow with its use. Caches elsewhere have their memory already.
void commit_cache(Backend& backend, Cache& cache);

/// Makes the whole process return large blocks to the system when they are freed. glibc would keep
/// up to 64 MiB of them in each arena once it has seen some.
void give_back_freed_memory() noexcept;

}  // namespace tributary
