#!/usr/bin/env python3
# A decode tier when something dies, stops or is restarted: real processes, errors with a type, and
# every page free afterwards. Classes whose name begins with Every run with --long: what the others
# show once, at more moments. When leases and deadlines end is tested in simulated time
# (tests/deploy/service/worker).
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from tier import LEASE_MS, Service, Tier, wait_until  # noqa: E402
from program import Screen  # noqa: E402


def digest(text):
    return re.search(r"^digest +(\w+)$", text, re.MULTILINE)[1]


class Failures(unittest.TestCase):
    """Clients that end with the test."""

    def start(self, tier, requests, length_scale, *more):
        client = Service(["replay", "--service", tier.url, "--requests", requests,
                          "--length-scale", length_scale, *more], screen=Screen())
        self.addCleanup(client.close)
        return client

    def finish(self, client, status=0):
        """What it said."""
        self.assertEqual(client.wait(), status, client.output())
        return client.output()

    def decoding(self, tier, requests, length_scale, *more):
        """A client that is far from its end, as it says itself."""
        client = self.start(tier, requests, length_scale, *more)
        client.process.wait_until(lambda: client.process.tokens_decoded() > 100, "it decodes")
        return client

    def expect_well(self, tier):
        """The tier still serves, with nothing left."""
        self.finish(self.start(tier, 4, 0.02))
        tier.wait_all_free()


class Clients(Failures):
    """Of one tier for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.tier = cls.enterClassContext(Tier(pools=(2,), lease_ms=LEASE_MS))

    def test_one_is_killed_while_it_decodes_and_another_is_not_disturbed(self):
        tier = self.tier
        expected = digest(self.finish(self.start(tier, 4, 0.05)))
        client = self.decoding(tier, 64, 1)
        survivor = self.start(tier, 4, 0.05)
        expired = tier.metric("tributary_leases_expired_total")
        client.signal(signal.SIGKILL)
        self.assertEqual(digest(self.finish(survivor)), expected)
        tier.wait_all_free()
        self.assertGreater(tier.metric("tributary_leases_expired_total"), expired)
        self.expect_well(tier)


class EveryClient(Clients):
    def admitted(self):
        return self.tier.metric("tributary_admissions_total", result="admitted")

    def test_they_are_killed_and_stopped_while_they_push(self):
        for what in (signal.SIGKILL, signal.SIGSTOP):
            for _ in range(3):
                before = self.admitted()
                client = self.start(self.tier, 64, 0.5)
                wait_until(lambda: self.admitted() > before, "it was admitted")
                client.signal(what)
        self.expect_well(self.tier)

    def test_one_stops_reading(self):
        client = self.decoding(self.tier, 64, 1)
        client.signal(signal.SIGSTOP)
        self.tier.wait_all_free()
        self.expect_well(self.tier)
        client.signal(signal.SIGCONT)
        self.assertRegex(self.finish(client, status=1), "lease|not_found|sequence|worker")


class Losses(Failures):
    def wait_states(self, tier, *states):
        wait_until(lambda: [w["state"] for w in tier.cluster()["pools"][0]["workers"]]
                   == list(states), f"its workers are {states}")

    def check_goes_on_without_killed_workers(self, mpirun):
        # Each has rows of every sequence.
        run = [32, 0.6, "--spread", "all"]
        with Tier(pools=(3,), mpirun=mpirun) as tier:
            expected = digest(self.finish(self.start(tier, *run)))
            ranks = tier.pools["pool0"].pids()
            for rank in (1, 2):
                client = self.decoding(tier, *run)
                os.kill(ranks[rank], signal.SIGKILL)
                said = self.finish(client)
                self.assertEqual(digest(said), expected)
                self.assertRegex(said, r"pushed again +\d+ rows")
                self.wait_states(tier, "serving", "lost", "serving" if rank == 1 else "lost")
                tier.wait_all_free()
            self.assertEqual(tier.state("pool0"), "serving")


class Pools(Losses):
    def busy_pools(self, tier):
        return [pool["name"] for pool in tier.cluster()["pools"] if pool["sequences"] > 0]

    def test_killed_leader(self):
        # Its pool ends with it. (Without another worker it goes on, or mpirun asks it to end.)
        with Tier(pools=(2, 2)) as tier:
            expected = digest(self.finish(self.start(tier, 4, 1)))
            victim = self.decoding(tier, 1, 12)
            (lost,) = wait_until(lambda: self.busy_pools(tier), "a pool has a sequence")
            admitted = tier.metric("tributary_admissions_total", result="admitted")
            survivor = self.start(tier, 4, 1)  # in the other one, which is empty
            wait_until(lambda: tier.metric("tributary_admissions_total",
                                           result="admitted") > admitted, "it was admitted")
            os.kill(tier.pools[lost].pids()[0], signal.SIGKILL)
            wait_until(lambda: tier.state(lost) == "lost", "the loss is noticed")
            self.assertIn("pool_lost", self.finish(victim, status=1))
            self.assertEqual(digest(self.finish(survivor)), expected)
            self.assertEqual(digest(self.finish(self.start(tier, 4, 1))), expected)
            wait_until(lambda: not tier.pools[lost].alive(), "its mpirun ended")
            tier.start_pool(lost, 2)
            wait_until(lambda: tier.state(lost) == "serving", "it is back")
            tier.wait_all_free()

    def test_a_pool_goes_on_without_workers_that_are_killed(self):
        self.check_goes_on_without_killed_workers(mpirun=None)

    def test_workers_that_are_started_one_by_one(self):
        run = [32, 0.6, "--spread", "all"]
        # Its rows move away before it ends, however long that takes.
        with Tier(pools=(3,), worker_flags=["--drain-timeout-ms", "600000"], mpirun=None) as tier:
            expected = digest(self.finish(self.start(tier, *run)))
            pool = tier.pools["pool0"]
            # Nobody comes in who is not asked.
            secret = tempfile.NamedTemporaryFile(mode="w", suffix=".secret")
            self.addCleanup(secret.close)
            secret.write("the-workers-of-another-pool")
            secret.flush()
            for others, status, reason in (
                    ({}, 1, "already_exists: rank 1 of 3: rank 1 has come before"),
                    ({"slots": 4}, 2, "rank 1 expects 4 ranks, rank 0 3"),
                    ({"secret": secret.name}, 1, "permission_denied: rank 1 of 3")):
                other = pool.start(1, **others)
                self.addCleanup(other.close)
                self.assertEqual(other.wait(), status, other.output())
                self.assertIn(reason, other.output())
            # One that is asked to end takes nothing along.
            client = self.decoding(tier, *run)
            pool.workers[1].signal(signal.SIGTERM)
            self.assertEqual(pool.workers[1].wait(), 0, pool.output())
            said = self.finish(client)
            self.assertEqual(digest(said), expected)
            self.assertNotIn("pushed again", said)
            self.wait_states(tier, "serving", "left", "serving")
            tier.wait_all_free()
            # Its slot is free, and so is that of one that is lost, for another process at another
            # address: while clients decode, it gets rows like any other worker.
            for rank, state in ((1, "left"), (2, "lost")):
                client = self.decoding(tier, *run)
                if state == "lost":
                    pool.workers[rank].signal(signal.SIGKILL)
                    self.wait_states(tier, "serving", "serving", "lost")
                pool.restart(rank)
                self.wait_states(tier, "serving", "serving", "serving")
                self.assertEqual(digest(self.finish(client)), expected)
                rows = tier.metric("tributary_worker_attended_rows_total", rank=str(rank))
                self.assertEqual(digest(self.finish(self.start(tier, *run))), expected)
                tier.wait_all_free()
                self.assertGreater(tier.metric("tributary_worker_attended_rows_total", rank=str(rank)),
                                   rows)
            # All that are left end with worker 0.
            pool.workers[0].signal(signal.SIGKILL)
            self.assertEqual(pool.workers[2].wait(), 1)
            self.assertIn("pool_lost: worker 0, the leader, is gone", pool.workers[2].output())

    def test_leader_that_stood_still(self):
        # For longer than a worker may be silent: its own stop is not the other worker's silence. The
        # other one waits twice as long for its orders.
        flags = ["--failure-timeout-ms", "8000"]
        with Tier(pools=(2,), worker_flags=flags) as tier:
            leader = tier.pools["pool0"].pids()[0]
            os.kill(leader, signal.SIGSTOP)
            time.sleep(11)
            os.kill(leader, signal.SIGCONT)
            wait_until(lambda: tier.state("pool0") == "serving", "it is heard again")
            self.finish(self.start(tier, 4, 0.1))
            self.assertEqual(tier.pools["pool0"].pids()[0], leader)


class EveryPool(Losses):
    def test_mpirun_leaves_the_others_alone(self):
        self.check_goes_on_without_killed_workers(mpirun=["--enable-recovery"])

    def test_paused_worker(self):
        # Silent for longer than it may be, and back when its slot is closed: it ends.
        run = [32, 0.6, "--spread", "all"]
        flags = ["--failure-timeout-ms", "4000"]
        with Tier(pools=(3,), worker_flags=flags, mpirun=None) as tier:
            expected = digest(self.finish(self.start(tier, *run)))
            paused = tier.pools["pool0"].pids()[1]
            client = self.decoding(tier, *run)
            os.kill(paused, signal.SIGSTOP)
            self.assertEqual(digest(self.finish(client)), expected)
            os.kill(paused, signal.SIGCONT)
            wait_until(lambda: not tier.pools["pool0"].workers[1].alive(), "it has ended")
            self.assertEqual(digest(self.finish(self.start(tier, *run))), expected)
            tier.wait_all_free()

    def test_a_worker_that_is_held_up_for_less_loses_nothing(self):
        run = [32, 0.6, "--spread", "all"]
        flags = ["--failure-timeout-ms", "10000"]
        with Tier(pools=(3,), worker_flags=flags, mpirun=None) as tier:
            expected = digest(self.finish(self.start(tier, *run)))
            for seconds, lost in ((0.5, []), (5, []), (20, [1])):
                client = self.decoding(tier, *run)
                os.kill(tier.pools["pool0"].pids()[1], signal.SIGSTOP)
                time.sleep(seconds)
                os.kill(tier.pools["pool0"].pids()[1], signal.SIGCONT)
                self.assertEqual(digest(self.finish(client)), expected, f"{seconds} s")
                workers = tier.cluster()["pools"][0]["workers"]
                self.assertEqual([w["rank"] for w in workers if w["state"] == "lost"], lost)
            tier.wait_all_free()

    def test_stopped_leader(self):
        # It keeps its connections, and nobody in its pool says that it is gone: the control plane
        # knows after its timeout, and a client from it. The pool itself, whose other worker waits
        # for the round or for an order, takes longer than this test may, and so does a call.
        with Tier(pools=(2,),
                  worker_flags=["--failure-timeout-ms", "600000"],
                  control_flags=["--failure-timeout-ms", "1000"]) as tier:
            victim = self.decoding(tier, 4, 6)
            os.kill(tier.pools["pool0"].pids()[0], signal.SIGSTOP)
            self.assertIn("pool_lost", self.finish(victim, status=1))


class ControlPlane(Failures):
    def test_restart_while_sequences_decode(self):
        with Tier(pools=(2,), lease_ms=600_000) as tier:  # nobody renews those of `first`, `second`
            expected = digest(self.finish(self.start(tier, 16, 0.2)))
            first = tier.admit(10, 10).json["sequence_id"]
            client = self.decoding(tier, 16, 0.2)
            tier.kill_control()
            tier.start_control(tier.address)
            tier.wait_ready(1)
            self.assertEqual(tier.get(f"/v1/sequences/{first}").status, 200)
            second = tier.admit(10, 10).json["sequence_id"]
            self.assertGreater(int(second) >> 32, int(first) >> 32)
            for sequence in (first, second):
                self.assertEqual(tier.request("DELETE", f"/v1/sequences/{sequence}").status, 200)
            self.assertEqual(digest(self.finish(client)), expected)
            tier.wait_all_free()


class EveryRestart(Failures):
    def test_clients_come_first(self):
        with Tier(pools=(2,)) as tier:
            tier.kill_control()
            client = self.start(tier, 4, 0.1)
            tier.start_control(tier.address)
            self.finish(client)


if __name__ == "__main__":
    unittest.main()
