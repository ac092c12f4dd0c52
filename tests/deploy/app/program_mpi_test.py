#!/usr/bin/env python3
# The program `tributary` under mpirun: the same results as with threads, errors in one line, and an
# end when a rank dies or stops. Classes whose name begins with Every run with --long: what the others
# show once, in more ways.
import ipaddress
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import (ENDLESS, LIMIT_S, MPIRUN, SMALL, TINY, Process, Screen,  # noqa: E402
                     run_on_terminal, wait_until)
from program_test import REQUEST, Case  # noqa: E402


class Results(Case):
    POLICIES = [["--spread", "all", "--exchange", "all-to-all", "--tokens-per-step", "3"]]
    REPLAYED, VERIFIED = [3], [2]  # numbers of ranks
    PRINTED = [["replay", "--help"]]

    def test_replay_has_the_digest_of_threads_on_any_number_of_ranks(self):
        for policy in self.POLICIES:
            expected = self.run_well(*SMALL, *policy).figure("digest")
            for ranks in self.REPLAYED:
                with self.subTest(policy=policy, ranks=ranks):
                    path = self.folder / "r.json"
                    result = self.run_well(*SMALL, *policy, "--json", path, ranks=ranks)
                    report = json.loads(path.read_text())
                    self.assertEqual(report["digest"], expected)
                    self.assertEqual(result.figure("digest"), expected)
                    self.assertEqual(report["communicator"], "mpi")
                    self.assertEqual(report["workers"], ranks)
                    self.assertEqual(report["pages_in_use_at_end"], 0)
                    self.assertEqual(report["exchange_bytes"], report["planned_exchange_bytes"])
                    # `auto` spreads only what pays: none of these short ones.
                    self.assertEqual(report["exchange_bytes"] > 0,
                                     ranks > 1 and "all" in policy)

    def test_verify(self):
        one = self.run_well("verify", TINY).stdout.splitlines()
        for ranks in self.VERIFIED:
            result = self.run_well("verify", TINY, ranks=ranks)
            self.assertIn(f"verified on {ranks} worker", result.stdout)
            self.assertIn("(mpi)", result.stdout)
            # The same bits, and so the same errors.
            self.assertEqual(result.stdout.splitlines()[:-1], one[:-1])

    def test_help_version_and_info_are_printed_once(self):
        for arguments in self.PRINTED:
            self.assertEqual(self.run_well(*arguments, ranks=2).stdout,
                             self.run_well(*arguments).stdout)

    def test_progress_is_shown_on_the_terminal_of_mpirun(self):
        status, shown = run_on_terminal(*SMALL, ranks=2)
        self.assertEqual(status, 0, shown)
        self.assertRegex(shown, r"\[[# ]{20}\] +[0-9]+%  [0-9]+ of [0-9]+ tokens")


class EveryResult(Results):
    POLICIES = [["--spread", "all", "--exchange", "all-gather"], *Results.POLICIES,
                ["--spread", "auto", "--max-batch", "2"]]
    REPLAYED, VERIFIED = [1, 2, 3, 4], [1, 2, 4]
    PRINTED = [["--help"], ["--version"], ["info"]]


class Refusals(Case):
    def test_workers_that_contradict_the_launcher(self):
        self.expect_refusal([*SMALL, "--workers", "3"], "--workers is 3", "2 ranks", ranks=2)

    def test_a_bad_file_gives_one_line_in_all(self):
        bad = self.file("bad.jsonl", REQUEST % (0, 10, 3) + "{")
        self.expect_refusal(["replay", bad], "line 2", ranks=3)


class EveryRefusal(Case):
    def test_workers_that_contradict_the_launcher(self):
        self.expect_refusal(["verify", TINY, "--workers", "1"], "--workers is 1", "2 ranks",
                            ranks=2)
        self.run_well(*SMALL, "--workers", "2", ranks=2)

    def test_simulate_is_for_one_process(self):
        self.expect_refusal(["simulate", "--requests", "5"], "one process", ranks=2)

    def test_bad_flags_and_files_give_one_line_in_all(self):
        self.expect_refusal(["replay", "--layers", "0"], "--layers", ranks=3)
        self.expect_refusal([*SMALL, "--backend", "abacus"], "'abacus'", ranks=3)
        self.expect_refusal([*SMALL, "--shape", "gpt"], "'gpt'", ranks=3)
        self.expect_refusal(["replay", self.folder / "absent"], "absent", ranks=3)
        self.expect_refusal(["verify", self.folder / "absent"], "absent", ranks=3)
        self.expect_refusal(["verify", self.file("t", TINY.read_bytes()[:5000])], "t", ranks=3)
        self.expect_refusal([*SMALL, "--json", self.folder / "no" / "r.json"], "r.json", ranks=3)

    def test_a_sequence_longer_than_the_pool(self):
        path = self.file("long.jsonl", REQUEST % (0, 10, 3) + REQUEST % (1, 100000, 5))
        self.expect_refusal(["replay", path, "--kv-gib", "0.01"], "request 1", "145 on each of 2",
                            ranks=2)


class Networks(Case):
    def options(self, *words, **environment):
        """What mpirun.sh tells mpirun besides what it was given."""
        with tempfile.TemporaryDirectory() as folder:
            mpirun = pathlib.Path(folder, "mpirun")
            mpirun.write_text('#!/bin/sh\necho "$@"\n')
            mpirun.chmod(0o755)
            clean = {key: value for key, value in os.environ.items()
                     if not key.startswith("OMPI_MCA_")}
            done = subprocess.run(
                [MPIRUN, "-np", "2", *words], capture_output=True, text=True, timeout=LIMIT_S,
                env={**clean, "PATH": f"{folder}:{os.environ['PATH']}", **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.endswith(" ".join(("-np 2", *words)) + "\n"), done.stdout)
        given = " ".join(words)
        return [word for word in re.findall(r"--mca (\S+ \S+)", done.stdout.removesuffix("\n"))
                if "btl" in word or "oob" in word if word not in given]

    def test_mpi_is_told_the_network_of_the_workers(self):
        def both(network):
            return [f"btl_tcp_if_include {network}", f"oob_tcp_if_include {network}"]
        self.assertEqual(self.options("t", "worker"), ["btl self,vader"])
        self.assertEqual(self.options("t", "worker", "--listen", "127.0.0.1"), ["btl self,vader"])
        self.assertEqual(self.options("t", "worker", "--listen", "10.0.0.0/24"),
                         both("10.0.0.0/24"))
        self.assertEqual(self.options("t", "worker", "--listen=eth0"), both("eth0"))
        self.assertEqual(self.options("t", "worker", "--listen", "10.0.0.7"), both("10.0.0.7/32"))
        self.assertEqual(self.options("t", "replay", "--listen=eth0"), both("eth0"))
        # Other commands have no network; their ranks are on this host unless the caller says.
        self.assertEqual(self.options("t", "replay"), ["btl self,vader"])
        self.assertEqual(self.options("--host", "a:1,b:1", "t", "replay"), [])
        # A worker's --listen may stand in its configuration file.
        self.assertEqual(self.options("--host", "a:1,b:1", "t", "worker", "--config", "f"), [])
        # The caller's setting wins.
        self.assertEqual(self.options("t", "worker", "--listen", "0.0.0.0"), [])
        own = ("--mca", "btl_tcp_if_include", "eth1")
        self.assertEqual(self.options(*own, "t", "worker", "--listen", "eth0"), [])
        self.assertEqual(self.options("t", "worker", OMPI_MCA_btl="self"), [])
        own = ("--mca", "oob_tcp_if_include", "eth1")
        self.assertEqual(self.options(*own, "t", "worker", "--listen", "eth0"),
                         ["btl_tcp_if_include eth0"])

    def test_ranks_on_one_machine_listen_on_loopback_alone(self):
        flags = ["worker", "--control", "http://127.0.0.1:1", "--kv-gib", "0.02",
                 "--shape", "deepseek-v2-lite"]
        with Process(flags, ranks=2) as pool:
            found = []

            def listening():
                found[:] = [listening_addresses(pid) for pid in pool.rank_pids().values()]
                return len(found) == 2 and all(found)  # the data plane of both
            pool.wait_until(listening, "both ranks listen")
            for address in sum(found, []):
                self.assertIn(address, ("127.0.0.1", "::1"))


def listening_addresses(pid):
    """Of the sockets of a process that accept connections over TCP."""
    try:
        links = [os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
        tables = [pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
                  for table in ("tcp", "tcp6")]
    except OSError:  # one closed meanwhile
        return []
    mine = {link[len("socket:["):-1] for link in links if link.startswith("socket:[")}
    addresses = []
    for fields in (line.split() for table in tables for line in table):
        if fields[9] in mine and fields[3] == "0A":  # it listens
            words = bytes.fromhex(fields[1].partition(":")[0])
            # The kernel prints 32-bit words of this machine.
            whole = b"".join(words[at:at + 4][::-1] for at in range(0, len(words), 4))
            addresses.append(str(ipaddress.ip_address(whole)))
    return addresses


class Rank(Case):
    """One of three ends or stops in the middle of a replay."""

    # The survivors wait for it in a round. Longer than a machine holds one up that is well.
    FLAGS = ["--failure-timeout-ms", "10000"]
    LOST = "|".join((
        # What should come does not: in a round, or between two, where a leader's orders stay away.
        "deadline_exceeded: ",
        # Between two rounds: a worker's connection to the leader ends.
        r"worker_failed: worker \d+ is gone",
        # mpirun wakes a stopped leader before it ends it: the leader may look at its workers' last
        # beats, older than its own stop, before it reads those that came meanwhile.
        r"worker_failed: worker \d+ has been silent for \d+ ms",
    ))

    def fail_rank(self, rank, what, mpirun=()):
        """Sends a signal to a rank when tokens are decoded; returns what the others print."""
        path = self.folder / "r.json"
        with Process([*ENDLESS, *self.FLAGS, "--json", path], 3, mpirun, screen=Screen()) as process:
            process.wait_decoding()
            os.kill(process.rank_pids()[rank], what)
            result = process.wait()
            # mpirun does not wait for those that it has killed.
            wait_until(lambda: not process.rank_pids(), "no rank is left behind")
        # Survivors go on, and mpirun's SIGTERM ends them in order: there may be a report of that.
        self.assertRegex(result.stdout, r"\A(PARTIAL: ended by SIGTERM|\Z)")
        if path.exists():
            self.assertTrue(json.loads(path.read_text())["partial"])
        return result

    def check_survivors(self, result):
        self.assertTrue(result.own_lines(), result)
        for line in result.own_lines():
            self.assertRegex(line, self.LOST)

    def check_stopped(self, rank):
        result = self.fail_rank(rank, signal.SIGSTOP)
        self.assertNotEqual(result.status, 0)
        self.check_survivors(result)


class Failures(Rank):
    def check_goes_on(self, what, mpirun=()):
        """The others decode on without rank 1, until they are told to end."""
        with Process([*ENDLESS, *self.FLAGS], 3, mpirun, screen=Screen()) as process:
            process.wait_decoding()
            os.kill(process.rank_pids()[1], what)
            tokens = process.tokens_decoded()
            process.wait_until(lambda: process.tokens_decoded() > tokens + 100, "it decodes on")
            process.popen.send_signal(signal.SIGINT)
            result = process.wait()
            wait_until(lambda: not process.rank_pids(), "no rank is left behind")
        self.assertNotRegex(result.stderr, self.LOST)

    def test_the_others_go_on_without_a_killed_rank(self):
        # With --enable-recovery mpirun leaves them alone; its own exit status is not checked.
        self.check_goes_on(signal.SIGKILL, ["--enable-recovery"])

    def test_the_others_go_on_without_a_stopped_rank(self):
        self.check_goes_on(signal.SIGSTOP)


class EveryFailure(Rank):
    def test_a_killed_rank_ends_the_job(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                self.assertNotEqual(self.fail_rank(rank, signal.SIGKILL).status, 0)

    def test_a_stopped_leader_ends_the_job_and_is_named_or_late(self):
        self.check_stopped(0)


if __name__ == "__main__":
    unittest.main()
