// Lets a connection over TCP notice that the other machine has disappeared.
#pragma once

namespace tributary {

/// Turns the system's probes on and bounds the time of unacknowledged bytes: a machine that
/// disappears silently is noticed after 25 s, also in the middle of a message. None of the options
/// fails on a TCP socket, and none is essential.
void set_keep_alive(int socket) noexcept;

}  // namespace tributary
