#!/usr/bin/env python3
# `tributary up`: a whole service with one command, which ends cleanly, also when a part of it dies.
# Classes whose name begins with Every run with --long: what the others show once, in more ways.
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import LIMIT_S, PROGRAM, TINY, Process, handling, run, wait_until  # noqa: E402
from program_test import Case  # noqa: E402

# No worker here is lost by its silence, however long it is held up.
FLAGS = ["up", "--listen", "127.0.0.1:0", "--leaf-tokens", "64", "--kv-gib", "0.05",
         "--failure-timeout-ms", "20000"]


class Up(Process):
    """Runs it with its output in a file, because it is read while the program runs."""

    def __init__(self, folder, *arguments, before=()):
        self.path = folder / "up.log"
        self.file = open(self.path, "w")
        super().__init__([*FLAGS, *arguments], output=self.file, before=before)

    def __exit__(self, *unused):
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        super().__exit__()
        self.file.close()

    def text(self):
        return self.path.read_text(errors="replace")

    def ready(self):
        self.wait_until(lambda: "\nready with " in self.text() or self.popen.poll() is not None,
                        "the service is ready")
        return re.search(r"^service +(\S+)$", self.text(), re.MULTILINE)[1]

    def pids(self, name=None):
        """Its live processes with that command, found by their environment."""
        pids = []
        for path in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                environment = (path / "environ").read_bytes().decode(errors="replace").split("\0")
                command = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if self.mark in environment and (name is None or command[1:2] == [name]):
                pids.append(int(path.name))
        return pids

    def ended(self):
        """Its exit status, once all its processes have ended."""
        status = self.popen.wait(LIMIT_S)
        wait_until(lambda: not self.pids(), f"all its processes have ended: {self.text()}")
        return status


class Service(Case):
    def test_serves_and_ends_without_a_trace(self):
        with Up(self.folder, "--workers", "2", "--model", TINY, "--rows", "f32", "--query",
                "f32") as up:
            url = up.ready()
            self.assertIn(f"status page  {url}/\n", up.text())
            self.assertEqual(len(up.pids("worker")), 2)
            verified = self.run_well("verify", "--service", url, TINY).stdout
            self.assertIn("forward.output", verified)
            self.assertIn("skipped tiny bf16cache: the pool's rows are f32\n", verified)
            self.assertIn(f"verified through {url}\n", verified)
            for senders in (1, 5):
                self.check_prefill(url, senders)
            os.kill(up.popen.pid, signal.SIGTERM)
            self.assertEqual(up.ended(), 0, up.text())
            self.assertIn("\nstopping; ", up.text())

    def check_prefill(self, url, senders):
        """It leaves its sequences to others."""
        path = self.folder / "sequences.jsonl"
        pushed = self.run_well("prefill", "--service", url, TINY, "--sequence-out", path,
                               "--senders", senders).stdout
        handles = [json.loads(line) for line in path.read_text().splitlines()]
        self.assertEqual(len(handles), pushed.count("ready, 37 rows"))
        for handle in handles:
            self.assertIn(f"sequence {handle['sequence_id']}  ready", pushed)
            self.assertRegex(handle["token"], "^[0-9a-f]{32}$")

    def test_replay_has_the_digest_of_a_pool_alone(self):
        flags = ["--requests", "6", "--length-scale", "0.02"]
        alone = self.run_well("replay", *flags, "--leaf-tokens", "64", "--layers", "2")
        with Up(self.folder, "--workers", "3", "--layers", "2") as up:
            url = up.ready()
            for more in ([], ["--clients", "3"], ["--tokens-per-step", "3", "--spread", "all"],
                         ["--max-batch", "2", "--spread", "single", "--canary-rate", "1"]):
                with self.subTest(more=more):
                    path = self.folder / "r.json"
                    result = self.run_well("replay", "--service", url, *flags, *more, "--json",
                                           path)
                    self.assertEqual(result.figure("digest"), alone.figure("digest"))
                    report = json.loads(path.read_text())
                    self.assertEqual(report["service"], url)
                    self.assertEqual((report["workers"], report["communicator"]), (3, "mpi"))
                    self.assertIsNone(report["phase_us"]["attend"])
                    self.assertIsNone(report["balance"])
                    # Rows are bf16, and a kernel may multiply in bf16: 2^-8 a term.
                    self.assertLess(report["canary_max_relative_error"], 5e-3)
                    self.assertEqual(report["canaries"] > 0, "--canary-rate" in more)


class EveryService(Case):
    def test_an_interrupt_ends_it_too(self):
        with Up(self.folder, "--workers", "2") as up:
            up.ready()
            os.kill(up.popen.pid, signal.SIGINT)
            self.assertEqual(up.ended(), 0, up.text())

    def test_a_machine_that_cannot_run_it_is_said_in_one_line(self):
        for command, words in (
                ('ulimit -n 16; exec "$0" "$@"', "16 descriptors are allowed (ulimit -Hn), 40 are"),
                ('ln -s "$BASH" bash; PATH=$PWD exec "$0" "$@"', "mpirun is not installed")):
            done = subprocess.run(["bash", "-c", command, PROGRAM, *FLAGS, "--workers", "2"],
                                  capture_output=True, text=True, timeout=LIMIT_S, cwd=self.folder)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done)
            self.assertRegex(done.stderr, rf"^tributary: io: .*{re.escape(words)}.*\n$")

    def test_a_service_of_another_shape_is_refused_by_name(self):
        with Up(self.folder, "--workers", "1") as up:
            url = up.ready()
            for command in ("verify", "prefill"):
                result = run(command, "--service", url, TINY)
                self.assertEqual(result.status, 2, result)
                self.assertEqual(result.own_lines(), [
                    "tributary: invalid_argument: tiny: heads is 4, but the service's pool has 16"])

    def test_a_pool_without_weights_has_any_shape(self):
        # No part beside the value; three KV heads of 64 as one latent, from a config.json.
        shapes = {"nope.json": {"heads": 5, "kv_lora_rank": 64, "qk_rope_head_dim": 0, "layers": 2,
                                "softmax_scale": 1.0},
                  "config.json": {"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 2,
                                  "num_attention_heads": 9, "num_key_value_heads": 3}}
        for name, keys in shapes.items():
            path = self.file(name, json.dumps(keys))
            flags = ["--requests", "3", "--length-scale", "0.02", "--canary-rate", "1"]
            alone = self.run_well("replay", *flags, "--shape", path, "--leaf-tokens", "64",
                                  "--layers", "2", "--rows", "f32", "--query", "f32")
            with Up(self.folder, "--workers", "2", "--shape", path, "--rows", "f32", "--query",
                    "f32") as up:
                spread = self.run_well("replay", "--service", up.ready(), *flags, "--spread", "all")
                self.assertEqual(spread.figure("digest"), alone.figure("digest"))
        refused = run("up", "--listen", "127.0.0.1:0", "--shape", path, "--layers", "3")
        self.assertNotEqual(refused.status, 0)
        self.assertIn("--layers is 3", refused.stderr)
        self.assertIn("has 2", refused.stderr)


class Starts(Case):
    REFUSED = []  # flags, the exit status, words

    def test_what_cannot_start_is_said(self):
        for arguments, status, words in self.REFUSED:
            flags = [f for f in FLAGS if arguments[0] not in ("--listen", "--kv-gib") or
                     f not in ("--listen", "127.0.0.1:0", "--kv-gib", "0.05")]
            self.expect_refusal([*flags, *arguments], *words, status=status)


class Ends(Starts):
    REFUSED = [(["--shape", "nope"], 2, ["the pool has ended", "'nope'", "deepseek-v3"]),
               (["--listen", "foo"], 2, ["the control plane has ended", "HOST:PORT"])]

    def check_death(self, part, line):
        with Up(self.folder, "--workers", "2") as up:
            up.ready()
            os.kill(up.pids(part)[0], signal.SIGKILL)
            self.assertEqual(up.ended(), 1)
            self.assertRegex(up.text(), rf"\ntributary: [a-z_]+: {line} has ended.*\n")
            self.assertNotIn("mpirun noticed", up.text())

    def test_a_worker_dies(self):
        self.check_death("worker", "the pool")

    def test_the_control_plane_dies(self):
        self.check_death("control", "the control plane")

    def test_what_it_started_does_not_outlive_it(self):
        with Up(self.folder, "--workers", "2") as up:
            up.ready()
            up.popen.kill()
            self.assertEqual(up.ended(), -signal.SIGKILL)

    def test_it_goes_on_after_its_terminal_under_nohup(self):
        with Up(self.folder, "--workers", "1", before=["nohup"]) as up:
            url = up.ready()
            for pid in (up.popen.pid, *up.pids("control")):
                self.assertEqual(handling(pid, signal.SIGHUP), {"ignored"})
                os.kill(pid, signal.SIGHUP)
            self.assertIn("  serving ", self.run_well("top", url, "--once").stdout)
            os.kill(up.popen.pid, signal.SIGTERM)
            self.assertEqual(up.ended(), 0, up.text())


class EveryEnd(Starts):
    REFUSED = [(["--model", "/none.safetensors"], 2, ["the pool has ended", "/none.safetensors"]),
               (["--costs", "nope"], 2, ["the pool has ended", "'nope'", "h200"]),
               (["--kv-gib", "90000"], 2, ["9e+04 GiB asked for, the machine has"]),
               (["--listen", "0.0.0.0:0"], 2, ["the control plane has ended", "0.0.0.0"]),
               (["--start-timeout-ms", "1"], 1, ["the service is not ready after 1 ms"])]


if __name__ == "__main__":
    unittest.main()
