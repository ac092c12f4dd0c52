#!/usr/bin/env python3
# The measuring part of bench/service.sh: a tier, its client and ucx_perftest in turns.
import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import time

PROGRAM = os.environ.get("TRIBUTARY_PROGRAM", "build/release/deploy/tributary")
BENCH = os.environ.get("TRIBUTARY_SERVICE_BENCH", "build/release/bench/service_bench")
LIMIT_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def perftest(test, size, count, mode):
    """The last line's figures of ucx_perftest between two processes over TCP."""
    port = str(free_port())
    options = ["-p", port, "-t", test, "-s", str(size), "-n", str(count), "-w", str(count // 10),
               "-f", "-E", mode]
    environment = {**os.environ, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
    with subprocess.Popen(["ucx_perftest", *options], env=environment,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(50):
                client = subprocess.run(["ucx_perftest", "127.0.0.1", *options], text=True,
                                        env=environment, capture_output=True, timeout=LIMIT_S)
                figures = re.findall(r"^ +(\d+(?: +[\d.]+)+)$", client.stdout, re.MULTILINE)
                if figures:
                    return [float(figure) for figure in figures[-1].split()]
                time.sleep(0.1)  # it does not listen yet
        finally:
            server.kill()
    raise SystemExit(f"ucx_perftest {test}: {client.stdout}{client.stderr}")


class Tier:
    def __init__(self, shape, flags):
        self.process = subprocess.Popen(
            [PROGRAM, "up", "--workers", "1", "--listen", "127.0.0.1:0", "--shape", shape,
             "--kv-gib", "0.25", *flags], stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            found = re.search(r"http://\S+:\d+", line)
            if found:
                self.url = found[0]
            if re.search(r"\bready\b", line):
                return
        raise SystemExit("the tier did not start")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)


def measure(url, seconds, flags):
    result = subprocess.run([BENCH, "--service", url, "--seconds", str(seconds), *flags],
                            capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return json.loads(result.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shape", default="deepseek-v3")
    parser.add_argument("--seconds", type=float, default=1)
    options = parser.parse_args()
    print(f"{'':<12}{'ping-pong':>11}{'pool':>9}{'layer':>9}{'commit':>9}{'added':>9}{'ratio':>8}"
          f"{'ingest':>10}{'ucx':>10}{'share':>8}")
    print(f"{'':<12}{'us':>11}{'us':>9}{'us':>9}{'us':>9}{'us':>9}{'':>8}{'GB/s':>10}{'GB/s':>10}")
    for mode, flags in (("sleep", []), ("poll", ["--busy-poll"])):
        tier = Tier(options.shape, flags)
        rows = []
        try:
            for _ in range(options.rounds):
                ours = measure(tier.url, options.seconds, flags)
                size = (ours["input_bytes"] + ours["output_bytes"]) // 2
                # Half a round trip is what it calls latency.
                ping = 2 * perftest("ucp_am_lat", size, 2000, mode)[1]
                bandwidth = perftest("ucp_am_bw", 4 << 20, 300, mode)[5] * (1 << 20)
                added = ours["layer_us"] - ours["pool_round_us"]
                rows.append([ping, ours["pool_round_us"], ours["layer_us"], ours["commit_us"],
                             added, added / ping, ours["ingest_bytes_per_s"] / 1e9,
                             bandwidth / 1e9, ours["ingest_bytes_per_s"] / bandwidth])
        finally:
            tier.stop()
        m = [statistics.median(column) for column in zip(*rows)]
        print(f"{mode:<12}{m[0]:>11.1f}{m[1]:>9.1f}{m[2]:>9.1f}{m[3]:>9.1f}{m[4]:>9.1f}"
              f"{m[5]:>8.2f}{m[6]:>10.2f}{m[7]:>10.2f}{m[8]:>8.2f}")


if __name__ == "__main__":
    main()
