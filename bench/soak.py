#!/usr/bin/env python3
# The traffic of bench/soak.sh: clients that finish, are killed, or stop reading; sequences that are
# admitted and abandoned; a control plane that is killed now and then.
import argparse
import pathlib
import random
import re
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/deploy/service"))
from tier import LEASE_MS, Service, Tier, wait_until  # noqa: E402

CLIENTS = 3
FREE_S = LEASE_MS / 1000 + 5


def resident_mib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


class Client:
    """One replay, and what happens to it."""

    def __init__(self, tier, dice):
        self.fate = dice.choices(["finish", "kill", "stop"], [6, 3, 1])[0]
        self.until = time.monotonic() + dice.uniform(0, 4)
        self.service = Service(
            ["replay", "--service", tier.url, "--requests", dice.randint(1, 12), "--seed",
             dice.randint(0, 1 << 30), "--length-scale", dice.choice([0.01, 0.05, 0.2]),
             "--tokens-per-step", dice.choice([1, 1, 2, 4])])

    def done(self):
        if not self.service.alive():
            status = self.service.wait()
            if self.fate == "finish" and status != 0:
                raise SystemExit(f"soak: a client failed:\n{self.service.output()}")
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
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    fates = {"finish": 0, "kill": 0, "stop": 0}
    abandoned = restarts = 0
    with Tier(pools=(2, 1)) as tier:
        pids = lambda: [pid for pool in tier.pools.values()  # noqa: E731
                        for pid in pool.pids().values()]
        clients, early = [], None
        begin = shown = time.monotonic()
        next_restart = begin + dice.uniform(20, 40)
        while (now := time.monotonic()) < begin + options.seconds:
            if len(clients) < CLIENTS:
                clients.append(Client(tier, dice))
                fates[clients[-1].fate] += 1
            if dice.random() < 0.05 and tier.admit(dice.randint(1, 500), 10).status == 201:
                abandoned += 1
            for client in [client for client in clients if client.done()]:
                client.service.close()
                clients.remove(client)
            if now > next_restart:
                tier.kill_control()
                tier.start_control(tier.address)
                tier.wait_ready(2)
                restarts += 1
                next_restart = now + dice.uniform(20, 40)
            if early is None and now > begin + options.seconds / 4:
                early = {pid: resident_mib(pid) for pid in pids()}
            if now > shown + 10:
                shown = now
                print(f"{now - begin:6.0f} s  {fates}  {abandoned} abandoned, {restarts} restarts "
                      f"of the control plane, {tier.metric('tributary_tokens_total'):.0f} tokens",
                      flush=True)
            time.sleep(0.05)
        for client in clients:
            client.service.close()
        tier.wait_all_free(FREE_S)
        wait_until(lambda: tier.metric("tributary_sequences") == 0, "no sequence is left", FREE_S)
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
