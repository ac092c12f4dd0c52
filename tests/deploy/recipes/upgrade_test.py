#!/usr/bin/env python3
# The upgrade of deploy/recipes/README.md: pools are drained and restarted one by one while clients
# decode, then the control plane, and no sequence is lost.
import pathlib
import signal
import sys
import threading
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "service"))
from tier import Tier, wait_until  # noqa: E402
from program import run  # noqa: E402

POOLS = ("pool0", "pool1")


class Upgrade(unittest.TestCase):
    def sequences(self, tier, name):
        return {pool["name"]: pool["sequences"] for pool in tier.cluster()["pools"]}[name]

    def replace(self, tier, name):
        other = POOLS[1 - POOLS.index(name)]
        self.assertEqual(tier.request("POST", f"/v1/pools/{name}/drain").status, 200)
        # Its own sequences run to their end, new ones go to the other pool.
        wait_until(lambda: self.sequences(tier, name) == 0, f"{name} is empty")
        wait_until(lambda: self.sequences(tier, other) > 0, f"{other} has the new ones")
        self.assertEqual(tier.state(name), "draining")
        tier.pools[name].signal(signal.SIGTERM)
        tier.pools[name].wait()
        self.assertIsNone(tier.state(name))  # a planned end is no loss
        tier.start_pool(name, 1)
        wait_until(lambda: tier.state(name) == "serving", f"{name} is back")

    def test_no_sequence_is_lost(self):
        done = threading.Event()
        results = []  # of each run: status and output

        def decode(tier):
            while not done.is_set():
                result = run("replay", "--service", tier.url, "--requests", "12",
                             "--length-scale", "0.2", "--max-batch", "4")
                results.append(result)

        with Tier(pools=(1, 1)) as tier:
            clients = [threading.Thread(target=decode, args=(tier,)) for _ in range(2)]
            for client in clients:
                client.start()
            try:
                for name in POOLS:
                    self.replace(tier, name)
                    wait_until(lambda: self.sequences(tier, name) > 0, f"{name} works again")
                self.assertEqual(tier.metric("tributary_pools_lost_total"), 0)
                tier.kill_control()
                tier.start_control(tier.address)
                tier.wait_ready(2)
            finally:
                done.set()
                for client in clients:
                    client.join()
            for result in results:
                self.assertEqual(result.status, 0, result)
            self.assertEqual(len({result.figure("digest") for result in results}), 1)
            self.assertGreater(len(results), 2)
            print(f"{len(results)} runs of clients", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
