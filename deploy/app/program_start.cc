#include "deploy/app/program_start.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

namespace tributary {
namespace {

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): known before main(), and to it
bool hangup_was_ignored = false;

void look_at_the_inheritance() noexcept {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    // The lowest free descriptor is this one.
    if (fcntl(descriptor, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDWR));
  }
  struct sigaction hangup {};
  hangup_was_ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
}

// The loader calls these before the constructors of any library.
[[gnu::section(".preinit_array"),
  gnu::used]] void (*before_constructors)() noexcept = look_at_the_inheritance;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

}  // namespace

void keep_hangup_ignored() noexcept {
  if (hangup_was_ignored) static_cast<void>(signal(SIGHUP, SIG_IGN));
}

}  // namespace tributary
