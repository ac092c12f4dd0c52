#!/usr/bin/env python3
# Compares predictions of `tributary plan` with measured steps on this machine's cores. `tributary
# bench` under mpirun, with a core for each worker, measures the machine's constants and the steps
# several times; each step's ratio is the median. Status 1 if one is off by more than the bound.
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BOUND = 0.20
# Shape, and steps as batch x context: from one leaf to several on each worker. Short enough that some
# repetitions are undisturbed on a machine with other work.
CASES = [
    ("deepseek-v2-lite", ["1x512", "1x2048", "1x4096", "1x16384", "2x4096", "4x1024", "8x512"]),
    ("deepseek-v3", ["1x512", "1x2048", "1x4096", "2x1024", "4x512"]),
]


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"plan_check: {' '.join(map(str, command))}: {done.stderr or done.stdout}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description="Predicted steps beside measured ones")
    parser.add_argument("--program", default=ROOT / "build/release/deploy/tributary")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="for each line of a table")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    worst = 0
    print(f"{'shape':<18}{'workers':>8}{'batch':>7}{'context':>9}{'measured us':>13}"
          f"{'predicted us':>14}{'off by':>8}{'from':>8}{'to':>7}")
    with tempfile.TemporaryDirectory() as folder:
        machine, plan = pathlib.Path(folder, "machine.json"), pathlib.Path(folder, "plan.json")
        for shape, steps in CASES:
            for workers in args.workers:
                if workers > cores:
                    print(f"NOT CHECKED: {workers} workers need as many cores, there are {cores}")
                    continue
                found = {step: [] for step in steps}
                for _ in range(args.repeat):
                    run(ROOT / "deploy/mpirun.sh", "-np", workers, "--bind-to", "core",
                        args.program, "bench", "--threads", 1, "--seconds", args.seconds,
                        "--shape", shape, "--steps", ",".join(steps), "--json", machine)
                    for step in json.loads(machine.read_text())["steps"]:
                        run(args.program, "plan", "--machine", machine, "--shape", shape,
                            "--workers-per-node", workers, "--layers", 1,
                            "--batch", step["batch"], "--context", step["context"],
                            "--json", plan)
                        predicted = next(
                            c["step_us"] for c in json.loads(plan.read_text())["candidates"]
                            if (c["spread"], c["exchange"]) == ("auto", step["exchange"]))
                        found[f"{step['batch']}x{step['context']}"].append(
                            (step["us"], predicted))
                for step, pairs in found.items():
                    batch, context = step.split("x")
                    offs = [predicted / measured - 1 for measured, predicted in pairs]
                    off = statistics.median(offs)
                    worst = max(worst, abs(off))
                    print(f"{shape:<18}{workers:>8}{batch:>7}{context:>9}"
                          f"{statistics.median(m for m, _ in pairs):>13.1f}"
                          f"{statistics.median(p for _, p in pairs):>14.1f}{off:>+8.1%}"
                          f"{min(offs):>+8.1%}{max(offs):>+7.1%}", flush=True)
    print(f"largest deviation: {worst:.1%}; allowed {BOUND:.0%}")
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
