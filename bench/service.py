#!/usr/bin/env python3
# The measurements of bench/service.sh: a tier with its client, and plain sockets, in turns.
import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import time

PROGRAM = os.environ.get("TRIBUTARY_PROGRAM", "build/release/deploy/tributary")
BENCH = os.environ.get("TRIBUTARY_SERVICE_BENCH", "build/release/bench/service_bench")
LIMIT_S = 120


def receive(connection, into, spin):
    view = memoryview(into)
    while view:
        try:
            got = connection.recv_into(view, 0, socket.MSG_DONTWAIT if spin else 0)
        except BlockingIOError:
            continue
        if got == 0:
            return False
        view = view[got:]
    return True


def sockets_us(sent, answered, mode, times):
    """The median time in which plain sockets move `sent` bytes to a process and `answered` back."""
    spin = mode == "poll"
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data, answer = bytearray(sent), bytes(answered)
            while receive(connection, data, spin):
                connection.sendall(answer)
            os._exit(0)
        taken = []
        with socket.create_connection(server.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data, answer = bytes(sent), bytearray(answered)
            for _ in range(times):
                begin = time.perf_counter()
                connection.sendall(data)
                receive(connection, answer, spin)
                taken.append((time.perf_counter() - begin) * 1e6)
        os.waitpid(child, 0)
    return statistics.median(taken)


class Tier:
    """`transport`: as of --transports; `folder`: of the certificate, for tls."""

    def __init__(self, shape, transport, folder=None, flags=()):
        self.flags = list(flags)
        serve = ["--transport", transport.removesuffix("-shm")]
        if transport.endswith("-shm"):
            serve.append("--shared-memory")
            self.flags.append("--shared-memory")
        if transport == "tls":
            self.flags += ["--ca", f"{folder}/tls.pem"]
            serve = ["--tls-certificate", f"{folder}/tls.pem", "--tls-key", f"{folder}/tls.key",
                     "--ca", f"{folder}/tls.pem"]
        self.process = subprocess.Popen(
            [PROGRAM, "up", "--workers", "1", "--listen", "127.0.0.1:0", "--shape", shape,
             "--kv-gib", "0.25", *serve, *flags], stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            found = re.search(r"https?://\S+:\d+", line)
            if found:
                self.url = found[0]
            if re.search(r"\bready\b", line):
                return
        raise SystemExit("the tier did not start")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)

    def measure(self, seconds):
        result = subprocess.run([BENCH, "--service", self.url, "--seconds", str(seconds),
                                 *self.flags], capture_output=True, text=True, timeout=LIMIT_S,
                                check=True)
        return json.loads(result.stdout)


def make_certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=tributary",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{folder}/tls.key",
                    "-out", f"{folder}/tls.pem"], check=True, capture_output=True)


def row(ours, mode):
    ping = sockets_us(ours["input_bytes"], ours["output_bytes"], mode, 3000)
    # A push is answered when its rows are where they belong.
    bandwidth = ours["push_bytes"] / sockets_us(ours["push_bytes"], 64, mode, 100) * 1e6
    added = ours["layer_us"] - ours["pool_round_us"]
    return [ping, ours["pool_round_us"], ours["layer_us"], ours["commit_us"], added, added / ping,
            ours["ingest_bytes_per_s"] / 1e9, bandwidth / 1e9,
            ours["ingest_bytes_per_s"] / bandwidth, ours["pull_bytes_per_s"] / 1e9,
            ours["pull_bytes_per_s"] / ours["ingest_bytes_per_s"],
            ours["layer_beside_pushes_us"] / ours["layer_alone_us"],
            ours["layer_beside_pulls_us"] / ours["layer_alone_us"]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", default="deepseek-v3")
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--transports", default="auto",
                        help="some of auto,tcp,tls,ucx,ucx-shm, separated by commas")
    options = parser.parse_args()
    transports = options.transports.split(",")
    print(f"{'':<12}{'sockets':>11}{'pool':>9}{'layer':>9}{'commit':>9}{'added':>9}{'ratio':>8}"
          f"{'ingest':>10}{'sockets':>10}{'share':>8}"
          f"{'pull':>8}{'/ingest':>9}{'pushes':>8}{'pulls':>8}")
    print(f"{'':<12}{'us':>11}{'us':>9}{'us':>9}{'us':>9}{'us':>9}{'':>8}{'GB/s':>10}{'GB/s':>10}{'':>8}"
          f"{'GB/s':>8}{'':>9}{'x layer':>8}{'x layer':>8}")
    with tempfile.TemporaryDirectory() as folder:
        make_certificate(folder)
        for mode, flags in (("sleep", []), ("poll", ["--busy-poll"])):
            rows = {transport: [] for transport in transports}
            for _ in range(options.rounds):
                for transport in transports:
                    with Tier(options.shape, transport, folder, flags) as tier:
                        rows[transport].append(row(tier.measure(options.seconds), mode))
            for transport in transports:
                m = [statistics.median(column) for column in zip(*rows[transport])]
                print(f"{transport + ' ' + mode:<12}{m[0]:>11.1f}{m[1]:>9.1f}{m[2]:>9.1f}"
                      f"{m[3]:>9.1f}{m[4]:>9.1f}{m[5]:>8.2f}{m[6]:>10.2f}{m[7]:>10.2f}"
                      f"{m[8]:>8.2f}{m[9]:>8.2f}{m[10]:>9.2f}{m[11]:>8.2f}{m[12]:>8.2f}",
                      flush=True)


if __name__ == "__main__":
    main()
