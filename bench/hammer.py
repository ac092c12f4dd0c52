# A process that connects to ports of the loopback device and says a preamble, RATE times a second:
# python3 hammer.py RATE PORT... Each connection stays open until the last HELD ones push it out.
import collections
import itertools
import pathlib
import signal
import socket
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/deploy/service"))
from plane_client import PREAMBLE  # noqa: E402

HELD = 1000
ADDRESSES = 8  # that they come from: one alone has an eighth of a worker's places
RESET = struct.pack("ii", 1, 0)  # leaves no port in TIME_WAIT


def main(rate, ports):
    running = True

    def end(*unused):
        nonlocal running
        running = False
    signal.signal(signal.SIGTERM, end)
    held = collections.deque()
    begin, count = time.monotonic(), 0
    targets = itertools.cycle(ports)
    while running:
        if count > (time.monotonic() - begin) * rate:
            time.sleep(0.001)
            continue
        count += 1
        stranger = socket.socket()
        held.append(stranger)
        try:
            stranger.settimeout(1)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            stranger.bind((f"127.0.0.{2 + count % ADDRESSES}", 0))
            stranger.connect(("127.0.0.1", next(targets)))
            stranger.send(PREAMBLE)
        except OSError:  # nobody listens now
            pass
        while len(held) > HELD:
            held.popleft().close()
    print(count)


if __name__ == "__main__":
    main(float(sys.argv[1]), [int(port) for port in sys.argv[2:]])
