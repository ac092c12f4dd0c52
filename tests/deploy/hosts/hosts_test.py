#!/usr/bin/env python3
# A decode tier over several hosts: the control plane on one, a pool over two, clients on another.
# Results and Firewall run each time, the other classes with --long.
# Slow, lossy or cut networks may change times or cause typed errors, but never other results.
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from lab import MANAGEMENT, MPI_PORTS, NETWORK, Lab, why_not  # noqa: E402
from program import LIMIT_S, TINY, run  # noqa: E402
from tier import wait_until  # noqa: E402

TOKEN = "0123456789abcdef0123456789abcdef"
PORT = 7300
LEASE_MS = 10_000
SHAPE = ["--leaf-tokens", "64", "--shape", "deepseek-v2-lite", "--layers", "2"]
WORKERS = ["--kv-gib", "0.05", *SHAPE, "--canary-interval-ms", "50",
           "--failure-timeout-ms", "20000"]
SMALL = ["--requests", "8", "--length-scale", "0.05"]
# Goes on for minutes, until something ends it.
ENDLESS = ["--requests", "256", "--length-scale", "1", "--max-batch", "8"]
HOSTS = ("control", "worker1", "worker2", "client")
FIREWALL = pathlib.Path(__file__).resolve().parents[3] / "deploy/recipes/firewall/tributary.nft"
WORKER_PORT = 7400


class HostTier(contextlib.AbstractContextManager):
    """A tier over the hosts of a lab."""

    def __init__(self, slow=None, guests=(), lease_ms=LEASE_MS):
        self.lease_ms = lease_ms
        self.folder = tempfile.TemporaryDirectory()
        self.token_file = pathlib.Path(self.folder.name, "token")
        self.token_file.write_text(TOKEN + "\n")
        self.lab = Lab((*HOSTS, *guests), slow)
        try:
            self.url = f"http://{self.lab['control'].address}:{PORT}"
            self.control = self.lab.start_tributary(
                "control", "control", "--listen", f"{self.lab['control'].address}:{PORT}",
                "--token-file", self.token_file)

            def listens():
                if not self.control.alive():
                    raise AssertionError(f"control ended: {self.control.output()}")
                return "http://" in self.control.output()
            wait_until(listens, "the control plane listens")
            self.start_pool()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *unused):
        self.lab.close()
        self.folder.cleanup()

    def start_pool(self):
        self.pool = self.lab.mpirun(
            ("worker1", "worker2"), 2, "worker", "--control", self.url, "--name", "pool",
            "--token-file", self.token_file, "--listen", f"{NETWORK}.0/24", "--port", WORKER_PORT,
            *WORKERS, "--lease-ms", self.lease_ms)

        self.wait_serving()

    def wait_serving(self):
        def serving():
            if not self.pool.alive():
                raise AssertionError(f"the pool ended: {self.pool.output()}")
            return self.state() == "serving"
        wait_until(serving, "the pool serves")

    def get(self, path):
        """From the control plane's own host: a cut elsewhere does not matter."""
        script = ("import sys, urllib.request as u; print(u.urlopen(u.Request(sys.argv[1], "
                  "headers={'Authorization': 'Bearer ' + sys.argv[2]}))"
                  ".read().decode())")
        return self.lab["control"].run(sys.executable, "-c", script, self.url + path, TOKEN)

    def cluster(self):
        return json.loads(self.get("/v1/cluster"))

    def state(self):
        return next((pool["state"] for pool in self.cluster()["pools"]), None)

    def series(self, name):
        """(labels, value) of each."""
        for line in self.get("/metrics").splitlines():
            if re.match(rf"{name}[ {{]", line):
                labels, _, value = line[len(name):].rpartition(" ")
                yield labels, float(value)

    def metric(self, name):
        return sum(value for _, value in self.series(name))

    def replay(self, *arguments):
        return self.lab.start_tributary("client", "replay", "--service", self.url, "--token-file",
                                        self.token_file, *arguments)

    def digest(self, *arguments):
        client = self.replay(*arguments)
        if client.wait() != 0:
            raise AssertionError(f"replay: {client.output()}\npool: {self.pool.output()}")
        return client.figure("digest")

    def wait_decoding(self, client):
        tokens = self.metric("tributary_tokens_total")

        def decodes():
            if not client.alive():
                raise AssertionError(f"it ended: {client.output()}")
            return self.metric("tributary_tokens_total") > tokens + 50
        wait_until(decodes, "it decodes")

    def wait_workers_ended(self):
        """So that others may have their ports."""
        wait_until(lambda: not [program for host in ("worker1", "worker2")
                                for _, _, program in self.lab[host].listening()
                                if program == "tributary"],
                   "its workers ended, also beyond a cut")

    def wait_all_free(self):
        wait_until(lambda: self.metric("tributary_pages_used")
                   + self.metric("tributary_pages_reserved") == 0, "every page is free")


def alone(*arguments):
    """The digest of a pool of one worker, on this machine."""
    result = run("replay", *arguments, *SHAPE)
    if result.status != 0:
        raise AssertionError(result)
    return result.figure("digest")


class FreeTier(HostTier):
    """Whose pool is started worker by worker, without mpirun, on hosts of their own."""

    WORKERS = ("worker1", "worker2", "worker3")

    def __init__(self):
        super().__init__(guests=("worker3",))

    def start_pool(self):
        leader = f"{self.lab[self.WORKERS[0]].address}:{WORKER_PORT - 1}"
        self.workers = [self.lab.start_tributary(
            name, "worker", "--control", self.url, "--name", "pool", "--token-file",
            self.token_file, "--listen", f"{NETWORK}.0/24", *SHAPE, "--kv-gib", "0.05",
            "--failure-timeout-ms", "4000", "--slots", len(self.WORKERS),
            "--slot", slot, "--leader", leader, "--pool-secret-file", self.token_file,
            "--lease-ms", self.lease_ms)
            for slot, name in enumerate(self.WORKERS)]
        self.pool = self.workers[0]
        self.wait_serving()

    def lost(self):
        return [worker["rank"] for pool in self.cluster()["pools"] for worker in pool["workers"]
                if worker["state"] == "lost"]

    def blackhole(self, name, other):
        """Nothing that `name` sends reaches the other host."""
        self.lab[name].run("ip", "route", "add", "blackhole", f"{self.lab[other].address}/32")


class Hosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            print(f"\nNO HOSTS ON THIS MACHINE, NOTHING OF SEVERAL HOSTS IS TESTED: {reason}",
                  file=sys.stderr)
            raise unittest.SkipTest(f"NO HOSTS: {reason}")


class Results(Hosts):
    def test_digest_is_that_of_one_machine_and_only_told_addresses_listen(self):
        with HostTier() as tier:
            hosts = {worker["host"] for pool in tier.cluster()["pools"]
                     for worker in pool["workers"]}
            self.assertEqual(hosts, {"worker1", "worker2"})
            self.assertEqual(tier.digest(*SMALL), alone(*SMALL))
            client = tier.replay(*ENDLESS)
            tier.wait_decoding(client)
            self.check_listening(tier)

    def check_listening(self, tier):
        ours, launchers = [], []
        for name in HOSTS:
            host = tier.lab[name]
            for address, port, program in host.listening():
                what = f"{name}: {program} on {address}:{port}"
                if program != "tributary" or port in MPI_PORTS:
                    launchers.append(what)
                else:
                    ours.append(what)
                    self.assertEqual(address, host.address, what)
                if program == "tributary" and name in ("control", "client"):
                    self.assertNotIn(port, MPI_PORTS, what)
        print("\nlistening:", *ours, "of Open MPI:", *launchers, sep="\n  ", file=sys.stderr)
        self.assertIn(f"control: tributary on {tier.lab['control'].address}:{PORT}", ours)
        # One port of each of the two workers of a host; clients listen nowhere.
        for name, ports in (("worker1", 2), ("worker2", 2), ("client", 0)):
            self.assertEqual(sum(what.startswith(name) for what in ours), ports, ours)


class OwnPool(Hosts):
    """Commands that run a pool themselves, under mpirun over two hosts."""

    def run_well(self, lab, *arguments):
        command = lab.mpirun(("worker1", "worker2"), 2, *arguments)
        if command.wait() != 0:
            raise AssertionError(command.output())
        return command

    def test_workers_listen_in_the_network_of_the_first_or_as_told(self):
        with Lab(("worker1", "worker2")) as lab:
            for listen in ([], ["--listen", f"{MANAGEMENT}.0/24"]):
                with self.subTest(listen=listen):
                    replay = self.run_well(lab, "replay", *SMALL, *SHAPE, "--spread", "all", *listen)
                    self.assertEqual(replay.figure("digest"), alone(*SMALL))
                    self.run_well(lab, "verify", TINY, *listen)
                    endless = lab.mpirun(("worker1", "worker2"), 2, "replay", *ENDLESS, *SHAPE,
                                         *listen)
                    self.check_listening(lab, endless, MANAGEMENT if listen else NETWORK)
                    endless.kill()

    def check_listening(self, lab, command, network):
        def ours():
            if not command.alive():
                raise AssertionError(f"it ended: {command.output()}")
            found = {(host.name, address) for host in lab.hosts.values()
                     for address, port, program in host.listening()
                     if program == "tributary" and port not in MPI_PORTS}
            return found if len(found) == 2 else None
        wait_until(ours, "both hosts listen")
        self.assertEqual(ours(), {("worker1", f"{network}.1"), ("worker2", f"{network}.2")})


class Firewall(Hosts):
    """The recipe, with this lab's addresses, attacked from a host that nobody knows."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        nft = shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin")
        tried = nft and subprocess.run(["unshare", "--net", nft, "add", "table", "inet", "trial"],
                                       capture_output=True, text=True, timeout=LIMIT_S)
        if not tried or tried.returncode != 0:
            reason = f"nft: {tried.stderr.strip()}" if tried else "needs the program nft"
            print(f"\nNO HOSTS WITH A FIREWALL ARE TESTED: {reason}", file=sys.stderr)
            raise unittest.SkipTest(f"NO HOSTS: {reason}")

    @staticmethod
    def close(tier):
        address = {name: host.address for name, host in tier.lab.hosts.items()}
        set_here = {"pool_hosts": f"{{ {address['worker1']}, {address['worker2']} }}",
                    "pool_device": '"eth0"',
                    "client_hosts": f"{{ {address['client']} }}",
                    "worker_ports": f"{{ {WORKER_PORT}-{WORKER_PORT + 3} }}",
                    "admin_hosts": f"{{ {address['control']} }}",
                    "admin_ports": "{ 22 }"}
        rules = FIREWALL.read_text()
        for name, value in set_here.items():
            rules, found = re.subn(rf"^define {name} = .*$", f"define {name} = {value}", rules,
                                   flags=re.MULTILINE)
            assert found == 1, name
        file = pathlib.Path(tier.folder.name, "rules.nft")
        file.write_text(rules)
        for name in ("worker1", "worker2"):
            for _ in range(2):  # loaded again it replaces itself
                tier.lab[name].run("nft", "--file", file)

    @staticmethod
    def doors(tier):
        """Every port of the pool's hosts, in both networks."""
        return {f"{network}.{tier.lab[name].number}:{port}" for name in ("worker1", "worker2")
                for _, port, _ in tier.lab[name].listening() for network in (NETWORK, MANAGEMENT)}

    @staticmethod
    def workers(tier):
        return {f"{tier.lab[name].address}:{port}" for name in ("worker1", "worker2")
                for _, port, _ in tier.lab[name].listening()
                if WORKER_PORT <= port < WORKER_PORT + 4}

    def test_a_stranger_reaches_nothing_and_the_pool_works(self):
        with HostTier(guests=("stranger",)) as tier:
            stranger = tier.lab["stranger"]
            open_before = stranger.knock(self.doors(tier))
            launchers = open_before - self.workers(tier)
            print("\na stranger reached before:", *sorted(open_before), sep="\n  ", file=sys.stderr)
            self.assertTrue(any(NETWORK in door for door in launchers), open_before)
            self.assertTrue(any(MANAGEMENT in door for door in launchers), open_before)
            self.assertLessEqual(self.workers(tier), open_before)

            running = tier.replay(*ENDLESS)
            tier.wait_decoding(running)
            self.close(tier)
            self.assertEqual(stranger.knock(self.doors(tier)), set())
            # Who takes the address of a pool's host in another network gains nothing.
            stranger.run("ip", "address", "add", f"{tier.lab['worker1'].address}/32", "dev", "eth1")
            self.assertEqual(stranger.knock({door for door in self.doors(tier)
                                             if MANAGEMENT in door}), set())
            tier.wait_decoding(running)
            running.kill()
            client = tier.lab["client"]
            self.assertEqual(client.knock(self.doors(tier)), self.workers(tier))
            self.assertEqual(tier.digest(*SMALL), alone(*SMALL))
            # A pool that starts behind it.
            tier.pool.kill()
            tier.wait_workers_ended()
            wait_until(lambda: tier.state() != "serving", "its end is noticed")
            tier.start_pool()
            self.assertEqual(stranger.knock(self.doors(tier)), set())
            self.assertEqual(tier.digest(*SMALL), alone(*SMALL))


class Networks(Hosts):
    DELAY_MS = 4

    def test_delay_and_loss_change_times_never_results(self):
        # One worker's host, and the clients'. Losing half a percent is a bad day of a bad network.
        slow = {"worker2": (self.DELAY_MS, 0.005), "client": (self.DELAY_MS, 0.005)}
        flags = ["--requests", "4", "--length-scale", "0.02"]
        with HostTier(slow) as tier:
            begin = time.monotonic()
            digest = tier.digest(*flags)
            seconds = time.monotonic() - begin
            self.assertEqual(digest, alone(*flags))
            # A step takes a message to its home and one back; so does a round of a spread sequence.
            rounds = tier.metric("tributary_rounds_total")
            self.assertGreater(seconds, rounds * 2 * self.DELAY_MS / 1e3)
            print(f"\n{rounds:.0f} rounds in {seconds:.1f} s", file=sys.stderr)
            tier.wait_all_free()


class Cuts(Hosts):
    """One tier for all tests: each restores what it cut."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.expected = alone(*SMALL)
        cls.tier = HostTier()

    @classmethod
    def tearDownClass(cls):
        cls.tier.__exit__()

    def decoding(self, *flags):
        client = self.tier.replay(*ENDLESS, *flags)
        self.addCleanup(client.kill)
        self.tier.wait_decoding(client)
        return client

    def expect_well(self):
        self.assertEqual(self.tier.digest(*SMALL), self.expected)
        self.tier.wait_all_free()

    def test_a_worker(self):
        tier = self.tier
        client = self.decoding("--call-timeout-ms", "5000")
        tier.lab.cut("worker2")
        begin = time.monotonic()
        status = client.wait()
        print(f"the client ended {time.monotonic() - begin:.1f} s after the cut", file=sys.stderr)
        self.assertEqual(status, 1, client.output())
        # The error of its call in flight: a step, or the admission of its next request.
        self.assertRegex(client.output(),
                         "pool_lost|worker_failed|deadline_exceeded|unavailable: no pool serves")
        wait_until(lambda: tier.state() == "lost", "the loss is noticed")
        wait_until(lambda: not tier.pool.alive(), "its mpirun ended")
        print(f"mpirun ended {time.monotonic() - begin:.1f} s after the cut", file=sys.stderr)
        tier.wait_workers_ended()
        tier.lab.heal("worker2")
        tier.start_pool()
        self.expect_well()

    def test_a_client(self):
        tier = self.tier
        client = self.decoding("--call-timeout-ms", "3000")
        tier.lab.cut("client")
        tier.wait_all_free()
        self.assertEqual(client.wait(), 1, client.output())
        self.assertRegex(client.output(), "deadline_exceeded|pool_lost|unavailable")
        tier.lab.heal("client")
        self.expect_well()

    def test_the_control_plane(self):
        tier = self.tier
        client = self.decoding()
        tier.lab.cut("control")
        wait_until(lambda: tier.state() == "lost", "the cut is noticed")
        self.assertTrue(client.alive(), client.output())
        tier.lab.heal("control")
        wait_until(lambda: tier.state() == "serving", "the pool registers again")
        self.assertTrue(tier.pool.alive(), tier.pool.output())
        # The control plane is never in the path of a step: running sequences go on.
        tier.wait_decoding(client)
        client.kill()
        tier.wait_all_free()


class LostHosts(Hosts):
    """A pool without mpirun outlives what is cut off, and answers as if nothing had been."""

    RUN = ["--requests", "48", "--length-scale", "0.5", "--spread", "all"]

    def check_goes_on(self, cut, may_go):
        with FreeTier() as tier:
            expected = tier.digest(*self.RUN)
            client = tier.replay(*self.RUN)
            tier.wait_decoding(client)
            cut(tier)
            self.assertEqual(client.wait(), 0, client.output() + tier.pool.output())
            self.assertEqual(client.figure("digest"), expected)
            lost = wait_until(tier.lost, "the loss is told")
            self.assertEqual(len(lost), 1, "one slot is closed, never both")
            self.assertIn(lost[0], may_go)
            self.assertEqual(tier.state(), "serving")
            tier.wait_all_free()
            return tier.workers[lost[0]].output()

    def test_a_host(self):
        self.check_goes_on(lambda tier: tier.lab.cut("worker2"), {1})

    def test_a_link_between_two_followers(self):
        def cut(tier):
            tier.blackhole("worker2", "worker3")
            tier.blackhole("worker3", "worker2")
        said = self.check_goes_on(cut, {1, 2})
        self.assertIn("the pool goes on without worker", said)

    def test_a_link_in_one_direction(self):
        self.check_goes_on(lambda tier: tier.blackhole("worker2", "worker3"), {1, 2})


class ShortCuts(Hosts):
    """The hosts of the pool lose everybody else, who lose each other too, with a default
    lease: the pool lives, and nobody may lose anything."""

    RUN = ["--requests", "48", "--length-scale", "0.3", "--max-batch", "8"]
    TOKEN_BYTES = 2 * 576 * 2  # of two layers, in bfloat16

    def test_they_cost_nothing(self):
        expected = alone(*self.RUN)
        with HostTier(lease_ms=30_000) as tier:
            longest = 0
            for runs, seconds in enumerate((0.3, 1, 3, 10), 1):
                client = tier.replay(*self.RUN)
                self.addCleanup(client.kill)
                tier.wait_decoding(client)
                begin = time.monotonic()
                for name in ("client", "control"):
                    tier.lab.cut(name)
                time.sleep(seconds)
                longest = max(longest, tier.lab.heal("client", "control") - begin)
                self.assertEqual(client.wait(), 0, f"{seconds} s: {client.output()}")
                self.assertEqual(client.figure("digest"), expected, f"{seconds} s")
                wait_until(lambda: tier.state() == "serving", "the pool is back")
                tokens = int(re.search(r"(\d+) prompt tokens", client.figure("decoded"))[1])
                wait_until(lambda: tier.metric("tributary_ingested_bytes_total")
                           == runs * tokens * self.TOKEN_BYTES,
                           f"nothing was pushed twice after {seconds} s")
                refused = {re.search('reason="([^"]*)"', labels)[1] for labels, value
                           in tier.series("tributary_refused_rows_total") if value > 0}
                # A message whose rest does not come for 10 s is given up, and sent again.
                self.assertLessEqual(refused, {"aborted", "repeated"} if longest > 9 else set(),
                                     f"{seconds} s")
            self.assertEqual(tier.metric("tributary_leases_expired_total"), 0)


if __name__ == "__main__":
    unittest.main()
