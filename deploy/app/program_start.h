// Puts in order what the program inherits, before any library looks at it.
#pragma once

namespace tributary {

/// For main(): ignores SIGHUP again if it was ignored when the program started, as nohup does; UCX
/// handles it from its constructor on. Descriptors 0 to 2 that were closed are /dev/null since
/// before the constructors, so that no socket or file is taken for stdout.
void keep_hangup_ignored() noexcept;

}  // namespace tributary
