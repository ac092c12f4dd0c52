#!/usr/bin/env python3
# How long it takes to empty one worker of a pool while all of its sequences decode, and what steps
# cost meanwhile: a tier of N workers on this machine, a replay that fills it, one drain.
#   bench/drain.py [--workers 3] [--leaf-tokens 64] [--layers 4] [--pages 800] [--length-scale 0.5]
import argparse
import contextlib
import json
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.request

from engine_speed import ROOT, processor

URL = "http://127.0.0.1:7300"


def arguments():
    parser = argparse.ArgumentParser(description="time to empty a worker under load")
    parser.add_argument("--program", default=ROOT / "build/release/deploy/tributary")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--leaf-tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pages", type=int, default=800, help="that the worker has at least")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--length-scale", type=float, default=0.5)
    parser.add_argument("--spread", default="auto")
    return parser.parse_args()


def request(path, method="GET"):
    with urllib.request.urlopen(urllib.request.Request(URL + path, method=method), timeout=30) as r:
        return r.read()


def worker(rank):
    pool, = json.loads(request("/v1/cluster"))["pools"]
    return pool["name"], pool["workers"][rank]


class Steps:
    """The times between two commits of a sequence, since it was made."""

    def __init__(self):
        self.before = self.counts()

    @staticmethod
    def counts():
        text = request("/metrics").decode()
        found = re.findall(r'^tributary_commit_interval_seconds_bucket\{[^}]*le="([^"]+)"\} (\d+)',
                           text, re.MULTILINE)
        return [(float(bound), int(count)) for bound, count in found]

    def p(self, share):
        """In ms, the upper bound of the bucket; and how many there were."""
        now = self.counts()
        more = [(bound, count - before) for (bound, count), (_, before) in zip(now, self.before)]
        total = more[-1][1]
        return next(1e3 * bound for bound, count in more if count >= share * total), total


@contextlib.contextmanager
def tier(options, folder):
    log = open(folder / "up.log", "w")
    process = subprocess.Popen(
        [options.program, "up", "--workers", str(options.workers), "--layers", str(options.layers),
         "--leaf-tokens", str(options.leaf_tokens), "--kv-gib", "3"], stdout=log, stderr=log)
    try:
        while True:
            try:
                request("/readyz")
                break
            except OSError:
                assert process.poll() is None, (folder / "up.log").read_text()
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def replay(options):
    return subprocess.Popen(
        [options.program, "replay", "--service", URL, "--requests", str(options.requests),
         "--length-scale", str(options.length_scale), "--spread", options.spread],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def digest(text):
    return re.search(r"^digest +(\w+)", text, re.MULTILINE)[1]


def metric(name):
    found, = re.findall(rf"^{name}\{{[^}}]*\}} (\S+)", request("/metrics").decode(), re.MULTILINE)
    return float(found)


def say(what, steps):
    p50, count = steps.p(0.5)
    p99, _ = steps.p(0.99)
    print(f"{what}: {count} commits, time between two of a sequence p50 {p50:.0f} ms, "
          f"p99 {p99:.0f} ms at most", flush=True)


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as name, tier(options, pathlib.Path(name)):
        print(f"{processor()}; {options.workers} workers, leaves of {options.leaf_tokens}")
        undisturbed, _ = replay(options).communicate()
        run = replay(options)
        rank = 1
        while worker(rank)[1]["pages"]["used"] < options.pages:
            assert run.poll() is None, "the worker has never had as many pages"
            time.sleep(0.02)
        steps = Steps()
        time.sleep(5)
        say("before", steps)
        pool, held = worker(rank)
        moves, moved = metric("tributary_moves_total"), metric("tributary_moved_bytes_total")
        steps, begin = Steps(), time.monotonic()
        request(f"/v1/pools/{pool}/workers/{rank}/drain", "POST")
        while worker(rank)[1]["state"] != "drained":
            assert run.poll() is None, f"the run has ended first: {worker(rank)}"
            time.sleep(0.02)
        took = time.monotonic() - begin
        say("while it is emptied", steps)
        print(f"worker {rank} had {held['pages']['used']} pages used, "
              f"{held['pages']['reserved']} reserved, {held['homes']} homes: "
              f"drained after {took:.2f} s, "
              f"{metric('tributary_moves_total') - moves:.0f} moves, "
              f"{(metric('tributary_moved_bytes_total') - moved) / 1e6:.0f} MB")
        steps = Steps()
        time.sleep(3)
        say("after", steps)
        disturbed, _ = run.communicate()
        print("digest", "unchanged" if digest(disturbed) == digest(undisturbed) else "CHANGED")


if __name__ == "__main__":
    main()
