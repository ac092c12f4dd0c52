// The limit on files and sockets that the program may have open.
#pragma once

namespace tributary {

/// Raises the limit to the hard one: the usual soft limit of 1,024 is for programs that use
/// select(). If that fails, the limit stays.
void raise_descriptor_limit() noexcept;

/// Raises a lower limit to `count`. Throws kIo if the hard limit is below it.
void need_descriptors(unsigned count);

}  // namespace tributary
