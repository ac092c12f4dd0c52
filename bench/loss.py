#!/usr/bin/env python3
# Workers of a pool are killed (SIGKILL) one after the other, at random moments of replays whose
# digest is known, until worker 0 is left; then a new pool. A replay has to end well each time, with
# the undisturbed digest and every page free. Some losses come while another worker is drained, and
# into half of the slots another process is started at once, which is killed later too. Prints what it
# took until rounds went on, and until lost rows were there again.
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
import time
import urllib.request

from engine_speed import ROOT, processor

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests" / "deploy"))
from program import free_ports  # noqa: E402

ADDRESS = f"127.0.0.1:{free_ports(1)[0]}"
URL = f"http://{ADDRESS}"
# How full they are: GiB for rows on each worker, beside what the replay wants in all (1.3 GiB).
FILLS = {"half full": 1.3, "full": 0.35}


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
    end = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.01)
    return found


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


def lose(options, dice, victim, spread, drained, restart):
    """One loss under a replay. Returns its digest, rows pushed again, how long no round came, and how
    long the slowest sequence lacked rows. `drained`: the path of a worker to empty meanwhile;
    `restart`: starts another process in that place, or nothing."""
    run = replay(options, spread)
    tokens = metric("tributary_tokens_total")
    until("it decodes", lambda: metric("tributary_tokens_total") > tokens + 20)
    if drained:
        post(drained + "drain")
    time.sleep(dice.uniform(0, 2.5))
    assert run.poll() is None, "it has ended before the loss"
    before = metric("tributary_rounds_total")
    begin = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    until("rounds go on", lambda: run.poll() is not None
          or metric("tributary_rounds_total") > before + 3)
    took = time.monotonic() - begin
    restart()
    out, error = run.communicate(timeout=300)
    assert run.returncode == 0, error
    if drained:
        post(drained + "resume")
    return (figure(r"^digest +(\w+)", out), int(figure(r"^pushed again +(\d+)", out)), took,
            float(figure(r"^pushed again .*p99 (\d+)", out)) / 1e6)


def main():
    options = arguments()
    dice = random.Random(options.seed)
    print(processor(), flush=True)
    done, newcomers, gaps, recoveries = 0, 0, [], []
    with (tempfile.TemporaryDirectory() as name,
          started(options.program, "control", "--listen", ADDRESS,
                  log=pathlib.Path(name) / "control.log")):
        folder = pathlib.Path(name)
        until("the control plane", lambda: URL in (folder / "control.log").read_text())
        sizes = [int(size) for size in options.workers.split(",")]
        number = 0
        known = {}
        while done < options.losses:
            workers = sizes[number % len(sizes)]
            fill = list(FILLS)[number // len(sizes) % len(FILLS)]
            with pool(options, folder, number, workers, FILLS[fill]) as (pids, restart):
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
                    digest, again, took, lacked = lose(
                        options, dice, pids[rank], spread, drained,
                        lambda: restart(rank) if comes else None)
                    if comes:
                        until("it has come", lambda:
                              pools()[0]["workers"][rank]["state"] == "serving")
                        left.append(rank)
                        newcomers += 1
                    until("every page is free", lambda: metric("tributary_pages_used")
                          + metric("tributary_pages_reserved") == 0)
                    assert digest == known[spread], f"{digest}, expected {known[spread]}"
                    done += 1
                    gaps.append(took)
                    if again:
                        recoveries.append(lacked)
                    print(f"{done}: worker {rank} of {workers}, {fill}, spread {spread}: {again} "
                          f"rows pushed again, rounds after {took:.2f} s, all rows {lacked:.2f} s "
                          f"later{', one drained' if drained else ''}"
                          f"{', another in its place' if comes else ''}, digest unchanged",
                          flush=True)
    print(f"{done} losses, {newcomers} newcomers, no sequence lost, digests unchanged, every page free; until rounds went "
          f"on: median {statistics.median(gaps):.2f} s, longest {max(gaps):.2f} s; from then until "
          f"lost rows were there: median {statistics.median(recoveries):.2f} s, longest "
          f"{max(recoveries):.2f} s")


if __name__ == "__main__":
    main()
