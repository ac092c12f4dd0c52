# Strangers attack a tier while bench/soak.sh --attacks runs its traffic, beside an honest client
# that notes for how long it is refused. Everything goes to ports of this machine's loopback that
# the tier itself opened.
import contextlib
import http.client
import os
import random
import signal
import socket
import threading
import time

# Bytes that end a UCX worker that listens over TCP: its magic, id 0, a length of 2^32 - 1.
ENDS_UCX = (0xCAFEBABE12345678).to_bytes(8, "little") + b"\0" + b"\xff" * 4
HELD_PER_WORKER = 200  # a worker has 128 places for strangers
HELD_AT_CONTROL = 400  # the control plane has 256 connections
STALL_S = 3
PAUSE_S = 0.02
TURN_LIMIT_S = 60  # more than a turn's waits together


class Loop(threading.Thread):
    """Repeats `turn` until stop(), which throws what it threw."""

    def __init__(self, turn, pause_s=PAUSE_S):
        super().__init__(daemon=True)
        self._turn, self._pause_s = turn, pause_s
        self._ended = threading.Event()
        self.turns, self.error = 0, None
        self.start()

    def run(self):
        try:
            while not self._ended.wait(self._pause_s):
                self._turn()
                self.turns += 1
        except Exception as error:  # for stop(), in the main thread
            self.error = error

    def stop(self):
        self._ended.set()
        self.join(TURN_LIMIT_S)
        if self.is_alive():
            raise AssertionError(f"{self._turn.__qualname__} has not ended in {TURN_LIMIT_S} s")
        if self.error:
            raise self.error


class Held:
    """`count` silent connections to one port; what the other side closes is opened again."""

    def __init__(self, port, count):
        self._port, self._count, self.opened = port, count, 0
        self._sockets = []

    def turn(self):
        kept = []
        for each in self._sockets:
            try:
                each.recv(1)  # a byte, or the end: it is over
                each.close()
            except BlockingIOError:
                kept.append(each)
            except OSError:
                each.close()
        self._sockets = kept
        for _ in range(min(20, self._count - len(kept))):
            with contextlib.suppress(OSError):
                each = socket.create_connection(("127.0.0.1", self._port), timeout=1)
                each.setblocking(False)
                self._sockets.append(each)
                self.opened += 1

    def close(self):
        for each in self._sockets:
            each.close()


class Attacks(contextlib.AbstractContextManager):
    """`control_lock` is held by whoever stops or replaces the control plane."""

    def __init__(self, tier, control_lock, seed):
        self._tier, self._lock, self._dice = tier, control_lock, random.Random(seed)
        workers = [int(worker["address"].rpartition(":")[2])
                   for pool in tier.cluster()["pools"] for worker in pool["workers"]]
        self._control = int(tier.address.rpartition(":")[2])
        self._held = [Held(port, HELD_PER_WORKER) for port in workers]
        self._held.append(Held(self._control, HELD_AT_CONTROL))
        self._ports = [*workers, self._control]
        self._thrown = Loop(self._throw)
        self._stalls = Loop(self._stall, 30)
        self._loops = [self._thrown, self._stalls, *(Loop(held.turn) for held in self._held)]

    def __exit__(self, *unused):
        for loop in self._loops:
            loop.stop()
        for held in self._held:
            held.close()

    def _throw(self):
        data = self._dice.choice([ENDS_UCX, os.urandom(self._dice.randint(1, 4096)), b"\0" * 24,
                                  b"TRIBUCX1\x02\0\0\x20", b"POST /v1/sequences HTTP/1.1\r\n"])
        with contextlib.suppress(OSError), socket.create_connection(
                ("127.0.0.1", self._dice.choice(self._ports)), timeout=1) as connection:
            connection.sendall(data)

    def _stall(self):
        with self._lock:
            self._tier.control.signal(signal.SIGSTOP)
            try:
                time.sleep(STALL_S)
            finally:
                self._tier.control.signal(signal.SIGCONT)

    def __str__(self):
        return (f"{self._thrown.turns} strangers threw bytes, "
                f"{sum(held.opened for held in self._held)} held connections, "
                f"{self._stalls.turns} stalls of the control plane")


class HonestClient(contextlib.AbstractContextManager):
    """Admits and frees a small sequence again and again. A tier that is full has answered, and a
    control plane that is stopped or replaced is no refusal: `control_lock` is held meanwhile."""

    def __init__(self, tier, control_lock):
        self._tier, self._lock = tier, control_lock
        self._refused_since, self._why = None, None
        self.longest_s, self.longest_why, self.served = 0.0, None, 0
        self._loop = Loop(self._turn, 0.05)

    def __exit__(self, *unused):
        self._loop.stop()

    def _turn(self):
        with self._lock:
            try:
                answer = self._tier.admit(10, 10)
                if answer.status == 201:
                    self._tier.request("DELETE", "/v1/sequences/" + answer.json["sequence_id"])
                ok = answer.status == 201 or answer.code == "pool_full"
                why = str(answer)
            except (OSError, http.client.HTTPException) as error:
                ok, why = False, repr(error)
        now = time.monotonic()
        if ok:
            self.served += 1
            self._refused_since = None
            return
        self._refused_since = self._refused_since or now
        if now - self._refused_since > self.longest_s:
            self.longest_s, self.longest_why = now - self._refused_since, why
