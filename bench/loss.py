#!/usr/bin/env python3
# Workers of a pool are killed (SIGKILL) one after the other, at random moments of replays whose
# digest is known, until worker 0 is left; then a new pool. A replay has to end well each time, with
# the undisturbed digest and every page free. Some losses come while another worker is drained, in
# some the control plane is killed too, and started again; into half of the slots another process is
# started at once, which is killed later too. Prints how full the pool was, what it took until rounds
# went on, and until lost rows were there again.
#   bench/loss.py [--losses 20] [--workers 2,3,4] [--seed 1] [--mpirun]
import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from engine_speed import ROOT, processor

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests" / "deploy"))
from program import free_ports  # noqa: E402

ADDRESS = f"127.0.0.1:{free_ports(1)[0]}"
URL = f"http://{ADDRESS}"
# What the replay wants at once, in GiB, and as a share of what the pool has.
WANTED_GIB = 0.388
FILLS = 0.5, 0.95, 1.9
# What a worker has at least: the longest sequence's rows, when it is the last one left.
LEAST_GIB = 0.08


def arguments():
    parser = argparse.ArgumentParser(description="losses of workers under load")
    parser.add_argument("--program", default=ROOT / "build/release/deploy/tributary")
    parser.add_argument("--losses", type=int, default=20)
    parser.add_argument("--workers", default="2,3,4", help="of the pools, in turns")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--length-scale", type=float, default=0.4)
    parser.add_argument("--mpirun", action="store_true", help="pools under mpirun --enable-recovery")
    return parser.parse_args()


def get(path):
    with urllib.request.urlopen(URL + path, timeout=30) as answer:
        return answer.read().decode()


def metric(name):
    return sum(float(v) for v in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)", get("/metrics"),
                                            re.MULTILINE))


def until(what, condition):
    """Also while there is no control plane, or one that does not know its pool yet."""
    end = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError, IndexError):
            if found := condition():
                return found
        assert time.monotonic() < end, what
        time.sleep(0.01)


def ranks(launcher):
    """The pids of a pool's ranks, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "environ").read_bytes().split(b"\0")
            named = dict(word.split(b"=", 1) for word in words if b"=" in word)
            if (named.get(b"LOSS_RUN") == str(launcher).encode() and
                    b"OMPI_COMM_WORLD_RANK" in named and
                    b"worker" in (entry / "cmdline").read_bytes().split(b"\0")):
                found[int(named[b"OMPI_COMM_WORLD_RANK"])] = int(entry.name)
    return found


@contextlib.contextmanager
def started(*command, log, **environment):
    with open(log, "w") as output:
        process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=output,
                                   env=os.environ | environment)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


class Control:
    """The control plane, which may be killed and started again."""

    def __init__(self, options, log):
        self.command = [str(options.program), "control", "--listen", ADDRESS]
        self.log = log
        self.start()

    def start(self):
        with open(self.log, "a") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output)

    def kill_and_start(self):
        self.process.kill()
        self.process.wait()
        self.start()

    def close(self):
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def pool(options, folder, number, workers, gib):
    """The pids of its workers, by rank, and what starts another one for a rank."""
    name = f"pool{number}"
    restart = None
    worker = [options.program, "worker", "--control", URL, "--name", name, "--shape",
              "deepseek-v2-lite", "--layers", 4, "--leaf-tokens", 64, "--kv-gib", gib]
    with contextlib.ExitStack() as running:
        if options.mpirun:
            running.enter_context(started(
                ROOT / "deploy/mpirun.sh", "--enable-recovery", "-np", workers, *worker,
                log=folder / f"{name}.log", LOSS_RUN=name))
        else:
            secret = folder / "secret"
            secret.write_text("the-workers-of-a-pool-of-bench-loss")
            leader = f"127.0.0.1:{free_ports(1)[0]}"

            def start(slot):
                return running.enter_context(started(
                    *worker, "--slots", workers, "--slot", slot, "--leader", leader,
                    "--pool-secret-file", secret, log=folder / f"{name}-{slot}.log")).pid
            pids = [start(slot) for slot in reversed(range(workers))][::-1]

            def restart(slot):
                pids[slot] = start(slot)
        until(f"{name} serves", lambda: states()[:1] == ["serving"])
        yield ranks(name) if options.mpirun else pids, restart
    until(f"{name} has gone", lambda: not states())


def pools():
    return [pool for pool in json.loads(get("/v1/cluster"))["pools"] if pool["state"] != "lost"]


def states():
    return [pool["state"] for pool in pools()]


def replay(options, spread):
    return subprocess.Popen(
        [options.program, "replay", "--service", URL, "--requests", str(options.requests),
         "--length-scale", str(options.length_scale), "--spread", spread],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def figure(pattern, text):
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else "0"


def post(path):
    with urllib.request.urlopen(urllib.request.Request(URL + path, method="POST"), timeout=30):
        pass


def fill_within(seconds):
    """After so long: the largest share of the pages that was in use or promised meanwhile."""
    end, most = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ZeroDivisionError):
            busy = metric("tributary_pages_used") + metric("tributary_pages_reserved")
            most = max(most, busy / metric("tributary_pages_capacity"))
        time.sleep(0.05)
    return most


def lose(options, dice, victim, spread, drained, restart, control):
    """One loss under a replay. Returns its digest, rows pushed again, how full the pool was, how long
    no round came, and how long the slowest sequence lacked rows. `drained`: the path of a worker to
    empty meanwhile; `restart`: starts another process in that place, or nothing; `control`: is
    killed too, if given."""
    run = replay(options, spread)
    tokens = metric("tributary_tokens_total")
    until("it decodes", lambda: metric("tributary_tokens_total") > tokens + 20)
    if drained:
        post(drained + "drain")
    killing = threading.Timer(dice.uniform(0, 3), control.kill_and_start if control else lambda: None)
    killing.start()
    full = fill_within(dice.uniform(0.6, 2.5))  # a heartbeat at least
    assert run.poll() is None, "it has ended before the loss"
    before = until("a heartbeat", lambda: metric("tributary_rounds_total"))
    begin = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    until("rounds go on", lambda: run.poll() is not None
          or metric("tributary_rounds_total") > before + 3)
    took = time.monotonic() - begin
    restart()
    out, error = run.communicate(timeout=300)
    assert run.returncode == 0, error
    killing.join()
    until("the pool is known", lambda: states() == ["serving"])
    if drained:
        post(drained + "resume")
    return (figure(r"^digest +(\w+)", out), int(figure(r"^pushed again +(\d+)", out)), full, took,
            float(figure(r"^pushed again .*p99 (\d+)", out)) / 1e6)


def main():
    options = arguments()
    dice = random.Random(options.seed)
    print(processor(), flush=True)
    done, newcomers, controls, gaps, recoveries = 0, 0, 0, [], []
    with (tempfile.TemporaryDirectory() as name,
          contextlib.closing(Control(options, pathlib.Path(name) / "control.log")) as control):
        folder = pathlib.Path(name)
        until("the control plane", lambda: URL in (folder / "control.log").read_text())
        sizes = [int(size) for size in options.workers.split(",")]
        number = 0
        known = {}
        while done < options.losses:
            workers = sizes[number % len(sizes)]
            share = FILLS[number // len(sizes) % len(FILLS)]
            with pool(options, folder, number, workers,
                      max(WANTED_GIB / share / workers, LEAST_GIB)) as (pids, restart):
                number += 1
                left = list(range(1, workers))
                dice.shuffle(left)
                again_later = {rank for rank in left if restart and dice.random() < 0.5}
                while left:
                    rank = left.pop(0)
                    comes = rank in again_later
                    again_later.discard(rank)
                    spread = dice.choice(["auto", "all"])
                    if spread not in known:
                        out, error = replay(options, spread).communicate()
                        known[spread] = figure(r"^digest +(\w+)", out)
                        assert known[spread] != "0", error
                    drained = (f"/v1/pools/pool{number - 1}/workers/{dice.choice(left)}/"
                               if left and dice.random() < 0.3 else "")
                    killed = dice.random() < 0.3
                    digest, again, full, took, lacked = lose(
                        options, dice, pids[rank], spread, drained,
                        lambda: restart(rank) if comes else None, control if killed else None)
                    if comes:
                        until("it has come", lambda:
                              pools()[0]["workers"][rank]["state"] == "serving")
                        left.append(rank)
                        newcomers += 1
                    until("every page is free", lambda: metric("tributary_pages_used")
                          + metric("tributary_pages_reserved") == 0)
                    assert digest == known[spread], f"{digest}, expected {known[spread]}"
                    done += 1
                    controls += killed
                    if not killed:  # who tells of rounds
                        gaps.append(took)
                    if again:
                        recoveries.append(lacked)
                    print(f"{done}: worker {rank} of {workers}, {full:.0%} full, spread {spread}: "
                          f"{again} rows pushed again, rounds after {took:.2f} s, all rows "
                          f"{lacked:.2f} s later{', one drained' if drained else ''}"
                          f"{', another in its place' if comes else ''}"
                          f"{', the control plane killed too' if killed else ''}, digest unchanged",
                          flush=True)
    print(f"{done} losses, {newcomers} newcomers, the control plane killed {controls} times, no "
          f"sequence lost, digests unchanged, every page free; until rounds went on: median "
          f"{statistics.median(gaps):.2f} s, longest {max(gaps):.2f} s; from then until lost rows "
          f"were there: median {statistics.median(recoveries):.2f} s, longest "
          f"{max(recoveries):.2f} s")


if __name__ == "__main__":
    main()
