# Strangers, and clients with a token that keep to no rule, attack a tier while bench/soak.sh
# --attacks runs its traffic, beside an honest client that notes for how long it is refused.
# Everything goes to ports of this machine's loopback that the tier itself opened.
import contextlib
import functools
import http.client
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

from plane_client import PlaneClient

# Bytes that end a UCX worker that listens over TCP: its magic, id 0, a length of 2^32 - 1.
ENDS_UCX = (0xCAFEBABE12345678).to_bytes(8, "little") + b"\0" + b"\xff" * 4
HELD_PER_WORKER = 700  # an address has 512 places for strangers at a worker
PROVEN_PER_WORKER = 1100  # a worker has 1,024 places for who has proven himself
PREAMBLES_PER_S = 5800  # at all workers together
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
                each = self._connect()
                each.setblocking(False)
                self._sockets.append(each)
                self.opened += 1

    def _connect(self):
        return socket.create_connection(("127.0.0.1", self._port), timeout=1)

    def close(self):
        for each in self._sockets:
            each.close()


class Proven(Held):
    """The same with the proof of a sequence that has ended, and without a greeting."""

    def __init__(self, tier, port):
        super().__init__(port, PROVEN_PER_WORKER)
        self._tier, self._sequence = tier, None

    def turn(self):
        if self._sequence is None:
            with admitted(self._tier, 10, 10) as sequence:
                if sequence and port_of(home_address(sequence)) == self._port:
                    self._sequence = sequence
        if self._sequence:
            super().turn()

    def _connect(self):
        return PlaneClient(self._port, self._sequence, timeout_s=1).socket


@contextlib.contextmanager
def admitted(tier, prompt_tokens, max_new_tokens):
    """A sequence that is freed at the end; None from a tier that is full or away."""
    sequence = None
    with contextlib.suppress(OSError, http.client.HTTPException):
        answer = tier.admit(prompt_tokens, max_new_tokens)
        sequence = answer.json if answer.status == 201 else None
    try:
        yield sequence
    finally:
        free(tier, sequence)


def free(tier, sequence):
    with contextlib.suppress(OSError, http.client.HTTPException):
        if sequence:
            tier.request("DELETE", "/v1/sequences/" + sequence["sequence_id"])


def home_address(sequence):
    return sequence["workers"][sequence["home"]]["address"]


def port_of(address):
    return int(address.rpartition(":")[2])


class Greedy:
    """Has a token, asks for as much as a request can name, and sends no payload; or sends it, and
    does not read the answers."""

    TOKENS, STEPS, ITEMS = 16, 50, 64

    def __init__(self, tier):
        self._tier = tier
        self.requests = 0

    @staticmethod
    def _enter(sequence):
        """A client that was let in, and the bytes of a token of its requests."""
        client = PlaneClient(port_of(home_address(sequence)), sequence)
        client.hello()
        shape = sequence["shape"]
        row = shape["kv_lora_rank"] + shape["qk_rope_head_dim"]
        return contextlib.closing(client), (shape["heads"] + 1) * row * 2

    def ask_without_payload(self):
        for end_first in (False, True):
            with (admitted(self._tier, 0, self.TOKENS) as sequence,
                  contextlib.suppress(OSError)):
                if sequence is None:
                    continue
                entered, token_bytes = self._enter(sequence)
                with entered as client:
                    if end_first:
                        free(self._tier, sequence)
                    client.socket.sendall(
                        client.layer_request(1, [0] * self.ITEMS, self.TOKENS, 0, token_bytes))
                    self.requests += 1
                    time.sleep(0.3)

    def ask_without_reading(self):
        with (admitted(self._tier, 0, self.TOKENS * self.STEPS) as sequence,
              contextlib.suppress(OSError)):
            if sequence is None:
                return
            entered, token_bytes = self._enter(sequence)
            payload = bytes(token_bytes * self.TOKENS)
            with entered as client:
                layers = client.shape["layers"]
                for number in range(self.STEPS * layers):
                    step, layer = divmod(number, layers)
                    client.socket.sendall(client.layer_request(
                        number, [layer], self.TOKENS, step * self.TOKENS, token_bytes, payload))
                    self.requests += 1
                    time.sleep(0.005)


class Flood:
    """Renews the lease of a sequence of a page, 64 times in each of thousands of controls a second,
    over one connection, and reads the answers."""

    CONTROLS, RENEWALS = 20_000, 64

    def __init__(self, tier):
        self._tier = tier
        self.controls = 0

    def turn(self):
        with admitted(self._tier, 0, 10) as sequence, contextlib.suppress(OSError):
            if sequence is None:
                return
            with contextlib.closing(PlaneClient(port_of(home_address(sequence)),
                                                sequence)) as client:
                client.hello()
                message = client.renewals(1, self.RENEWALS)
                reader = Loop(functools.partial(client.socket.recv, 1 << 20), 0)
                try:
                    for _ in range(self.CONTROLS // 100):
                        client.socket.sendall(100 * message)
                        self.controls += 100
                finally:
                    client.socket.shutdown(socket.SHUT_RDWR)
                    with contextlib.suppress(OSError):
                        reader.stop()


class Attacks(contextlib.AbstractContextManager):
    """`control_lock` is held by whoever stops or replaces the control plane."""

    def __init__(self, tier, control_lock, seed):
        self._tier, self._lock, self._dice = tier, control_lock, random.Random(seed)
        workers = [int(worker["address"].rpartition(":")[2])
                   for pool in tier.cluster()["pools"] for worker in pool["workers"]]
        self._control = int(tier.address.rpartition(":")[2])
        self._held = [Held(port, HELD_PER_WORKER) for port in workers]
        self._held.append(Held(self._control, HELD_AT_CONTROL))
        homes = [port_of(pool["workers"][0]["address"]) for pool in tier.cluster()["pools"]]
        self._proven = [Proven(tier, port) for port in homes]
        self._greedy = Greedy(tier)
        self._flood = Flood(tier)
        self._ports = [*workers, self._control]
        self._thrown = Loop(self._throw)
        self._stalls = Loop(self._stall, 30)
        hammer = [sys.executable, pathlib.Path(__file__).with_name("hammer.py"), PREAMBLES_PER_S]
        self._hammer = subprocess.Popen([*map(str, hammer), *map(str, workers)],
                                        stdout=subprocess.PIPE, text=True)
        self.preambles = 0
        self._loops = [self._thrown, self._stalls,
                       *(Loop(held.turn) for held in [*self._held, *self._proven]),
                       Loop(self._flood.turn),
                       Loop(self._greedy.ask_without_payload),
                       Loop(self._greedy.ask_without_reading)]

    def __exit__(self, *unused):
        self._hammer.terminate()
        self.preambles = int(self._hammer.communicate(timeout=TURN_LIMIT_S)[0] or 0)
        for loop in self._loops:
            loop.stop()
        for held in [*self._held, *self._proven]:
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
        return (f"{self._thrown.turns} strangers threw bytes, {self.preambles} said a preamble, "
                f"{sum(held.opened for held in self._held)} held connections, "
                f"{sum(held.opened for held in self._proven)} with the token of an ended sequence, "
                f"{self._greedy.requests} greedy requests, {self._flood.controls} controls, "
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
