#!/usr/bin/env python3
# A slow and lossy cable between two network namespaces, for kernels without netem:
# cable.py PID:DEVICE PID:DEVICE DELAY_MS LOSS. Makes both devices, passes frames on after the delay
# and drops their share, until its standard input ends.
import collections
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
# A frame and its headers; the kernel cuts what is longer, since a tap takes no offloads.
MAX_FRAME = 2048
# Like a switch's queue: frames that do not fit are lost.
MAX_QUEUED = 4096


def tap(pid, device):
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.setns(there, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
        return end
    finally:
        libc.setns(home, CLONE_NEWNET)
        os.close(home)
        os.close(there)


def main():
    ends = [tap(*text.split(":")) for text in sys.argv[1:3]]
    delay_s, loss = float(sys.argv[3]) / 1e3, float(sys.argv[4])
    lost = random.Random(1)
    queued = {end: collections.deque() for end in ends}  # towards it: (when, frame)
    other = dict(zip(ends, reversed(ends)))
    print("ready", flush=True)
    while True:
        due = min((queue[0][0] for queue in queued.values() if queue), default=None)
        timeout = None if due is None else max(0.0, due - time.monotonic())
        for end in select.select([*ends, sys.stdin], [], [], timeout)[0]:
            if end is sys.stdin:
                return
            try:
                frame = os.read(end, MAX_FRAME)
            except OSError:  # the device is down
                continue
            queue = queued[other[end]]
            if len(queue) < MAX_QUEUED and lost.random() >= loss:
                queue.append((time.monotonic() + delay_s, frame))
        now = time.monotonic()
        for end, queue in queued.items():
            while queue and queue[0][0] <= now:
                try:
                    os.write(end, queue.popleft()[1])
                except OSError:  # down, or full: lost, as on any cable
                    pass


if __name__ == "__main__":
    main()
