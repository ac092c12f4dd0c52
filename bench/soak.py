#!/usr/bin/env python3
# The traffic of bench/soak.sh: clients that finish, are killed, or stop reading; sequences that are
# admitted and abandoned; a control plane that is killed now and then.
import argparse
import contextlib
import pathlib
import random
import re
import signal
import sys
import threading
import time

sys.dont_write_bytecode = True
TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests/deploy"
sys.path[:0] = [str(TESTS), str(TESTS / "service")]
from program import run  # noqa: E402
from soak_attacks import Attacks, HonestClient  # noqa: E402
from tier import Service, Tier, wait_until  # noqa: E402

CLIENTS = 3
LEASE_MS = 8000  # an honest client of a busy machine is never this late
REFUSED_S = 1  # no honest client is refused for longer
# Attackers and clients share the machine's cores with the workers, which wait for each other.
PATIENT = ["--failure-timeout-ms", 30_000]
WORKLOADS = 4  # whose digests are known from a pool alone


def workload(number):
    return ["--requests", 3 * number + 1, "--seed", number, "--length-scale",
            [0.01, 0.05, 0.2][number % 3]]


def digest(text):
    return re.search(r"^digest +(\w+)$", text, re.MULTILINE)[1]


def expected_digests():
    shape = ["--shape", "deepseek-v2-lite", "--leaf-tokens", "64"]
    results = [run("replay", *workload(number), *shape) for number in range(WORKLOADS)]
    return [digest(result.stdout) for result in results]


def resident_mib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


@contextlib.contextmanager
def logs_of_failures(tier):
    """What the tier's processes said last, if the block fails."""
    try:
        yield
    except BaseException:
        for name, service in [("control", tier.control), *tier.pools.items()]:
            print(f"--- {name}", *service.output().splitlines()[-30:], sep="\n")
        raise


class Client:
    """One replay, and what happens to it."""

    def __init__(self, tier, dice, digests):
        self.expected = digests[number := dice.randrange(WORKLOADS)]
        self.fate = dice.choices(["finish", "kill", "stop"], [6, 3, 1])[0]
        self.until = time.monotonic() + dice.uniform(0, 4)
        self.service = Service(
            ["replay", "--service", tier.url, *workload(number), "--tokens-per-step",
             dice.choice([1, 1, 2, 4])])

    def done(self):
        if not self.service.alive():
            status = self.service.wait()
            if self.fate == "finish" and status != 0:
                raise SystemExit(f"soak: a client failed:\n{self.service.output()}")
            if self.fate == "finish" and digest(self.service.output()) != self.expected:
                raise SystemExit(f"soak: not {self.expected}:\n{self.service.output()}")
            return True
        if self.fate != "finish" and time.monotonic() > self.until:
            if self.fate == "stop":
                self.service.signal(signal.SIGSTOP)
                self.fate, self.until = "kill", self.until + LEASE_MS / 1000 + 1
                return False
            self.service.signal(signal.SIGKILL)
            self.service.wait()
            return True
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--restart-s", type=float, default=30,
                        help="between restarts of the control plane, on average")
    parser.add_argument("--attacks", action="store_true")
    options = parser.parse_args()
    seconds = 60 * options.minutes
    digests = expected_digests()
    dice = random.Random(options.seed)
    fates = {"finish": 0, "kill": 0, "stop": 0}
    abandoned = restarts = lost = 0
    with (Tier(pools=(2, 1), lease_ms=LEASE_MS, worker_flags=PATIENT) as tier,
          logs_of_failures(tier), contextlib.ExitStack() as beside):
        control_lock = threading.Lock()
        honest = attacks = None
        if options.attacks:
            attacks = beside.enter_context(Attacks(tier, control_lock, options.seed))
            honest = beside.enter_context(HonestClient(tier, control_lock))
        pids = lambda: [pid for pool in tier.pools.values()  # noqa: E731
                        for pid in pool.pids().values()]
        clients, early = [], None
        begin = shown = time.monotonic()
        pause_s = lambda: options.restart_s * dice.uniform(2 / 3, 4 / 3)  # noqa: E731
        next_restart = begin + pause_s()
        while (now := time.monotonic()) < begin + seconds:
            if len(clients) < CLIENTS:
                clients.append(Client(tier, dice, digests))
                fates[clients[-1].fate] += 1
            if dice.random() < 0.05 and tier.admit(dice.randint(1, 500), 10).status == 201:
                abandoned += 1
            for client in [client for client in clients if client.done()]:
                client.service.close()
                clients.remove(client)
            if now > next_restart:
                with control_lock:
                    lost += tier.metric("tributary_pools_lost_total")
                    tier.kill_control()
                    tier.start_control(tier.address)
                    tier.wait_ready(2)
                restarts += 1
                next_restart = now + pause_s()
            if early is None and now > begin + seconds / 4:
                early = {pid: resident_mib(pid) for pid in pids()}
            if now > shown + 10:
                shown = now
                print(f"{now - begin:6.0f} s  {fates}  {abandoned} abandoned, {restarts} restarts "
                      f"of the control plane, {tier.metric('tributary_tokens_total'):.0f} tokens",
                      flush=True)
            time.sleep(0.05)
        for client in clients:
            client.service.close()
        if attacks:
            beside.close()
            print(f"soak: {attacks}; an honest client was served {honest.served} times, refused "
                  f"for {honest.longest_s:.2f} s at most ({honest.longest_why})")
            if not honest.served or honest.longest_s > REFUSED_S:
                raise SystemExit("soak: an honest client was refused for too long")
        lost += tier.metric("tributary_pools_lost_total")
        if lost:
            raise SystemExit(f"soak: {lost:.0f} healthy pools were lost")
        tier.wait_all_free()
        wait_until(lambda: tier.metric("tributary_sequences") == 0, "no sequence is left")
        failures = tier.metric("tributary_canary_failures_total")
        checked = tier.metric("tributary_canary_checks_total")
        for pid, mib in early.items():
            late = resident_mib(pid)
            print(f"worker {pid}: {mib:.0f} MiB after a quarter, {late:.0f} MiB at the end")
            if late > mib * 1.05 + 8:
                raise SystemExit("soak: memory grows")
        if failures or not checked:
            raise SystemExit(f"soak: {failures:.0f} of {checked:.0f} canaries failed")
        print(f"soak: every page free; {fates}, {abandoned} abandoned, {restarts} restarts, "
              f"{tier.metric('tributary_tokens_total'):.0f} tokens, {checked:.0f} canaries good")


if __name__ == "__main__":
    main()
