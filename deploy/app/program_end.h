// Ends the program where a subcommand cannot report: a report that was not written, an exception
// that nobody caught.
#pragma once

namespace tributary {

/// Returns `status`, or 1 with a line on stderr if printed text did not reach its file or pipe.
[[nodiscard]] int flushed(int status);

/// For std::set_terminate(): some thread threw an exception that nobody caught, such as bad_alloc.
/// Prints one line and exits with status 1 instead of a core; mpirun ends the other ranks.
[[noreturn]] void end_badly();

}  // namespace tributary
