#!/usr/bin/env python3
# A decode tier when something dies, stops or sends wrong data: every case with real processes,
# within a time bound, and with every page free afterwards.
import os
import pathlib
import re
import signal
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from tier import LEASE_MS, Service, Tier, wait_until  # noqa: E402

# The control plane notices a lost pool, some seconds after a worker that has stopped missed its
# deadline. It takes a second or two; the rest is for a machine that stalls.
NOTICE_S = 30


def replay(tier, requests, length_scale, *more):
    return Service(["replay", "--service", tier.url, "--requests", requests, "--length-scale",
                    length_scale, *more])


def finish(client, limit_s=200):
    status = client.wait(limit_s)
    return status, client.output()


def digest(text):
    return re.search(r"^digest +(\w+)$", text, re.MULTILINE)[1]


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tier = Tier(pools=(2,), lease_ms=LEASE_MS)

    @classmethod
    def tearDownClass(cls):
        cls.tier.__exit__()

    def setUp(self):
        self.clients = []

    def tearDown(self):
        for client in self.clients:
            client.close()

    def start(self, *arguments):
        self.clients.append(replay(self.tier, *arguments))
        return self.clients[-1]

    def decoding(self):
        """A client far from its end. Figures come with heartbeats: the first tokens may be those of
        the run before, which are fewer."""
        tokens = self.tier.metric("tributary_tokens_total")
        client = self.start(64, 1)
        wait_until(lambda: self.tier.metric("tributary_tokens_total") > tokens + 100, "it decodes")
        return client

    def expect_well(self):
        """The tier still serves, with right results and nothing left."""
        client = self.start(4, 0.02)
        status, output = finish(client)
        self.assertEqual(status, 0, output)
        self.tier.wait_all_free()

    def test_killed_while_pushing(self):
        for delay_s in (0, 0.01, 0.05, 0.1):
            before = self.tier.metric("tributary_ingested_bytes_total")
            client = self.start(64, 0.5)
            wait_until(lambda: self.tier.busy_pages() > 0, "it was admitted")
            time.sleep(delay_s)
            client.signal(signal.SIGKILL)
            self.tier.wait_all_free()
            self.assertGreaterEqual(self.tier.metric("tributary_ingested_bytes_total"), before)
        self.expect_well()

    def test_stopped_while_pushing(self):
        for delay_s in (0.01, 0.05):
            client = self.start(64, 1)
            wait_until(lambda: self.tier.busy_pages() > 0, "it was admitted")
            time.sleep(delay_s)
            client.signal(signal.SIGSTOP)
            self.tier.wait_all_free()
            client.signal(signal.SIGKILL)
        self.expect_well()

    def test_killed_while_stepping(self):
        client = self.decoding()
        expired = self.tier.metric("tributary_leases_expired_total")
        client.signal(signal.SIGKILL)
        self.tier.wait_all_free()
        self.assertGreater(self.tier.metric("tributary_leases_expired_total"), expired)
        self.expect_well()

    def test_stopped_reading(self):
        client = self.decoding()
        client.signal(signal.SIGSTOP)
        self.tier.wait_all_free()
        self.expect_well()
        client.signal(signal.SIGCONT)
        status, output = finish(client)
        self.assertEqual(status, 1, output)
        self.assertRegex(output, "lease|not_found|sequence|worker")

    def test_a_run_beside_dying_ones_is_not_disturbed(self):
        alone = self.start(4, 0.05)
        expected = digest(finish(alone)[1])
        survivor = self.start(4, 0.05)
        for _ in range(3):
            client = self.start(8, 0.1)
            time.sleep(0.2)
            client.signal(signal.SIGKILL)
        status, output = finish(survivor)
        self.assertEqual(status, 0, output)
        self.assertEqual(digest(output), expected)
        self.tier.wait_all_free()


class Pools(unittest.TestCase):
    def setUp(self):
        self.clients = []

    def tearDown(self):
        for client in self.clients:
            client.close()

    def start(self, tier, *arguments):
        self.clients.append(replay(tier, *arguments))
        return self.clients[-1]

    def busy_pools(self, tier):
        return [pool["name"] for pool in tier.cluster()["pools"] if pool["sequences"] > 0]

    def check_lost_and_back(self, number):
        with Tier(pools=(2, 2)) as tier:
            reference = self.start(tier, 4, 1)
            status, output = finish(reference)
            self.assertEqual(status, 0, output)
            victim = self.start(tier, 1, 6)
            (lost,), _ = wait_until(lambda: self.busy_pools(tier), "a pool has a sequence")
            survivor = self.start(tier, 4, 1)
            # It takes 2 s: a machine that stalls does not see it at work.
            wait_until(lambda: len(self.busy_pools(tier)) == 2 or not survivor.alive(),
                       "the other pool has one, too")
            os.kill(tier.pools[lost].pids()[1], number)
            wait_until(lambda: tier.state(lost) == "lost", "the loss is noticed", NOTICE_S)
            status, text = finish(victim, 30)
            self.assertEqual(status, 1, text)
            self.assertIn("pool_lost", text)
            status, text = finish(survivor)
            self.assertEqual(status, 0, text)
            self.assertEqual(digest(text), digest(output))
            again = self.start(tier, 4, 1)
            self.assertEqual(digest(finish(again)[1]), digest(output))
            wait_until(lambda: not tier.pools[lost].alive(), "its mpirun ended", 30)
            tier.start_pool(lost, 2)
            wait_until(lambda: tier.state(lost) == "serving", "it is back")
            tier.wait_all_free()

    def test_killed_worker(self):
        self.check_lost_and_back(signal.SIGKILL)

    def test_paused_worker(self):
        self.check_lost_and_back(signal.SIGSTOP)

    def test_stopped_leader(self):
        # It keeps its connections, and nobody in its pool says that it is gone: the control plane
        # knows after its timeout, and a client from it, in 3 s. The pool itself, whose other worker
        # waits for the round or for an order, takes a minute, and so does a call's deadline.
        with Tier(pools=(2,),
                  worker_flags=["--round-timeout-ms", "60000", "--worker-timeout-ms", "60000"],
                  control_flags=["--pool-timeout-ms", "1500", "--pool-patience-ms", "1500"]) as tier:
            victim = self.start(tier, 4, 6)
            tokens = tier.metric("tributary_tokens_total")
            wait_until(lambda: tier.metric("tributary_tokens_total") > tokens, "it decodes")
            os.kill(tier.pools["pool0"].pids()[0], signal.SIGSTOP)
            stopped = time.monotonic()
            status, text = finish(victim, 30)
            print(f"the client gave up after {time.monotonic() - stopped:.1f} s")
            self.assertEqual(status, 1, text)
            self.assertIn("pool_lost", text)


class ControlPlane(unittest.TestCase):
    def test_restart_while_sequences_decode(self):
        with Tier(pools=(2,), lease_ms=60_000) as tier:  # nobody renews those of `first`, `second`
            reference = replay(tier, 16, 1)
            status, output = finish(reference)
            reference.close()
            self.assertEqual(status, 0, output)
            first = tier.admit(10, 10).json["sequence_id"]
            client = replay(tier, 16, 1)
            tokens = tier.metric("tributary_tokens_total")
            wait_until(lambda: tier.metric("tributary_tokens_total") > tokens, "it decodes")
            tier.kill_control()
            tier.start_control(tier.address)
            tier.wait_ready(1)
            self.assertEqual(tier.get(f"/v1/sequences/{first}").status, 200)
            second = tier.admit(10, 10).json["sequence_id"]
            self.assertGreater(int(second) >> 32, int(first) >> 32)
            for sequence in (first, second):
                self.assertEqual(tier.request("DELETE", f"/v1/sequences/{sequence}").status, 200)
            status, text = finish(client)
            client.close()
            self.assertEqual(status, 0, text)
            self.assertEqual(digest(text), digest(output))
            tier.wait_all_free()

    def test_clients_that_come_first(self):
        with Tier(pools=(2,)) as tier:
            tier.kill_control()
            client = replay(tier, 4, 0.1)
            tier.start_control(tier.address)
            status, text = finish(client)
            client.close()
            self.assertEqual(status, 0, text)


if __name__ == "__main__":
    unittest.main()
