#!/usr/bin/env python3
# A decode tier of real processes as operators and clients see it: results, overload, and what it
# refuses. Classes whose name begins with Every, Overload and Idle run with --long.
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from recorder import Recorder  # noqa: E402
from tier import WORKER_FLAGS, Service, Tier, wait_until  # noqa: E402
from program import ROOT, TINY, free_ports, run  # noqa: E402

SHARED = pathlib.Path(os.environ.get("TRIBUTARY_SHARED_DIR", ROOT.parent / "shared"))
TOKEN = "0123456789abcdef0123456789abcdef"
# Its magic, the id 0, a length of 2^32 - 1: an assertion of UCX 1.13 fails on these.
ABORTS_UCX = (0xCAFEBABE12345678).to_bytes(8, "little") + b"\0" + b"\xff" * 4


def well(case, *arguments):
    result = run(*arguments)
    case.assertEqual(result.status, 0, result)
    return result


def is_dense_golden(path):
    """Whether a file says that it is of the layer that attends to all rows: sparse ones do not."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size))["__metadata__"].get("format") == "mla-golden-1"


def check_transport(case, wanted, taken, reason):
    flags = ["--requests", "4", "--length-scale", "0.02"]
    with Tier(pools=(2,), worker_flags=["--transport", wanted]) as tier:
        pool = tier.cluster()["pools"][0]
        if wanted == "auto" and pool["transport"] == "ucx":
            case.skipTest(f"this machine has RDMA: {pool['transport_reason']}")
        case.assertEqual(pool["transport"], taken)
        case.assertIn(reason, pool["transport_reason"])
        line = f"data plane: {taken} ({pool['transport_reason']})"
        wait_until(lambda: line in tier.pools["pool0"].output(), "mpirun has passed it on")
        for worker in pool["workers"]:
            case.assertRegex(worker["address"], rf"^{taken}://127\.0\.0\.1:\d+$")
        well(case, "replay", "--service", tier.url, *flags, "--transport", taken)
        other = {"tcp": "ucx", "ucx": "tcp"}[taken]
        refused = run("replay", "--service", tier.url, *flags, "--transport", other)
        case.assertEqual(refused.status, 2, refused)
        case.assertIn(f"transport {other} was asked for", refused.stderr)


def make_certificate(folder, name, host="127.0.0.1"):
    """`folder`/`name`.pem and .key, which nobody else signed."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-addext", f"subjectAltName=IP:{host}", "-keyout", f"{folder}/{name}.key",
                    "-out", f"{folder}/{name}.pem"], check=True, capture_output=True)


class Results(unittest.TestCase):
    def test_the_transport_that_is_asked_for_is_taken_and_kept_to(self):
        check_transport(self, "ucx", "ucx", "asked for")

    def test_the_data_plane_is_encrypted_and_asks_for_certificates(self):
        with tempfile.TemporaryDirectory() as folder:
            pem, key = f"{folder}/both.pem", f"{folder}/both.key"
            make_certificate(folder, "both")
            shown = ["--tls-certificate", pem, "--tls-key", key, "--ca", pem]
            flags = ["--requests", "4", "--length-scale", "0.02"]
            with Tier(pools=(2,), worker_flags=[*shown, "--client-ca", pem]) as tier:
                pool = tier.cluster()["pools"][0]
                self.assertEqual((pool["transport"], pool["transport_reason"]),
                                 ("tls", "auto: UCX does not encrypt"))
                replay = ["replay", "--service", tier.url, *flags]
                well(self, *replay, *shown)
                for more, reason in ((["--ca", pem], "certificate required"),  # shows none
                                     ([], "its certificate: self-signed")):  # trusts others
                    refused = run(*replay, *more)
                    self.assertEqual(refused.status, 1, refused)
                    self.assertRegex(refused.stderr, f"permission_denied: .*{reason}")

    def test_workers_are_emptied_one_after_the_other_while_clients_decode(self):
        flags = ["--requests", "12", "--length-scale", "0.2"]
        alone = well(self, "replay", *flags, "--shape", "deepseek-v2-lite", "--layers", "2",
                     "--leaf-tokens", "64").figure("digest")
        with (Tier(pools=(3,), worker_flags=["--layers", "2"]) as t,
              concurrent.futures.ThreadPoolExecutor(1) as pool):
            def order(rank, what):
                answer = t.request("POST", f"/v1/pools/pool0/workers/{rank}/{what}")
                self.assertEqual(answer.status, 200, answer)

            def worker(rank):
                return t.cluster()["pools"][0]["workers"][rank]

            emptied = set()
            while len(emptied) < 3:  # a run may be too short for all of them
                replay = pool.submit(well, self, "replay", "--service", t.url, *flags, "--spread",
                                     "all")
                while not replay.done():
                    rank = len(emptied) % 3
                    # A worker that is drained before it has rows gets none.
                    wait_until(lambda: replay.done() or worker(rank)["pages"]["used"] > 0,
                               f"worker {rank} has rows")
                    order(rank, "drain")
                    wait_until(lambda: replay.done() or worker(rank)["state"] == "drained",
                               f"worker {rank} is empty")
                    if not replay.done():
                        emptied.add(rank)
                    order(rank, "resume")
                self.assertEqual(replay.result().figure("digest"), alone)
            order(1, "drain")
            wait_until(lambda: [w["state"] for w in t.cluster()["pools"][0]["workers"]]
                       == ["serving", "drained", "serving"], "it is told")
            t.wait_all_free()


class EveryResult(unittest.TestCase):
    def check_golden(self, path, rows):
        with Tier(pools=(3,),
                  worker_flags=["--model", path, "--rows", rows, "--query", "f32"]) as t:
            self.assertIn("verified", well(self, "verify", "--service", t.url, path).stdout)
            pushed = well(self, "prefill", "--service", t.url, path).stdout
            self.assertRegex(pushed, "ready")
            t.wait_all_free()

    def test_tiny_matches_the_golden_outputs(self):
        for rows in ("f32", "bf16"):
            with self.subTest(rows=rows):
                self.check_golden(TINY, rows)

    def test_all_golden_files_match(self):
        files = [path for path in sorted((SHARED / "golden").glob("*.safetensors"))
                 if is_dense_golden(path)]
        if not files:
            self.skipTest(f"NO GOLDEN FILES in {SHARED / 'golden'}")
        for path in files:
            for rows in ("f32", "bf16"):
                with self.subTest(file=path.name, rows=rows):
                    self.check_golden(path, rows)

    def test_a_certificate_that_peers_will_refuse_is_named_at_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, host in (("mine", "127.0.0.1"), ("other", "127.0.0.1"), ("far", "10.0.0.1")):
                make_certificate(folder, name, host)
            for name, authority, reason in (("mine", "other", "self-signed certificate"),
                                            ("far", "far", "IP address mismatch")):
                result = run("worker", *WORKER_FLAGS, "--layers", "1", "--tls-certificate",
                             f"{folder}/{name}.pem", "--tls-key", f"{folder}/{name}.key", "--ca",
                             f"{folder}/{authority}.pem", ranks=2)
                self.assertNotEqual(result.status, 0, result)
                lines = [line for line in result.own_lines() if "certificate" in line]
                self.assertEqual(len(lines), 1, result)
                self.assertRegex(lines[0], rf"{folder}/{name}\.pem, checked against .* for "
                                           rf"127\.0\.0\.1: .*{reason}")

    def test_the_transport_is_chosen_told_and_kept_to(self):
        check_transport(self, "auto", "tcp", "auto: no RDMA port")

    def test_no_token_travels_on_the_data_plane(self):
        # Workers listen on one address of this machine and name another, where the recorders are.
        base = free_ports(1)[0]
        with contextlib.ExitStack() as stack:
            data = [stack.enter_context(Recorder(("127.0.0.2", port), ("127.0.0.1", port)))
                    for port in (base, base + 1)]
            tier = stack.enter_context(Tier(pools=(2,), worker_flags=[
                "--port", base, "--advertise", "127.0.0.2", "--transport", "tcp"]))
            host, port = tier.address.split(":")
            http = stack.enter_context(Recorder(("127.0.0.1", free_ports(1)[0]), (host, int(port))))
            well(self, "replay", "--service", "http://{}:{}".format(*http.address), "--requests",
                 "8", "--length-scale", "0.02", "--spread", "all")
            heard = [stream for recorder in data for stream in recorder.heard()]
            self.assertGreater(sum(map(len, heard)), 1 << 20)
            tokens = set(re.findall(rb'"token":"([0-9a-f]{32})"', b"".join(http.heard())))
            # A client whose worker is silent for half a second asks the control plane about its
            # sequence, which tells its key to nobody who asks.
            tokens.discard(b"0" * 32)
            self.assertGreaterEqual(len(tokens), 8)
            for token in tokens:
                for secret in (token, bytes.fromhex(token.decode())):
                    self.assertFalse(any(secret in stream for stream in heard), token)


def resident_kib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


class Overload(unittest.TestCase):
    def test_what_does_not_fit_is_refused_and_what_was_admitted_finishes(self):
        with Tier(pools=(2,), lease_ms=60_000) as tier:
            expected = well(self, "replay", "--service", tier.url, "--requests", "4",
                            "--length-scale", "0.05").figure("digest")
            never = tier.admit(1 << 30, 1)
            self.assertEqual((never.status, never.code), (413, "too_large"), never)
            client = Service(["replay", "--service", tier.url, "--requests", "4",
                              "--length-scale", "0.05"])
            held, refused = [], 0
            pids = [tier.control.process.popen.pid, *tier.pools["pool0"].pids().values()]
            for attempt in range(400):
                answer = tier.admit(4096, 64)
                if answer.status == 201:
                    held.append(answer.json["sequence_id"])
                else:
                    self.assertEqual((answer.status, answer.code), (429, "pool_full"), answer)
                    self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
                    refused += 1
                if attempt == 150:
                    before = [resident_kib(pid) for pid in pids]
            self.assertGreater(refused, 300)
            self.assertGreater(len(held), 0)
            for pid, kib in zip(pids, before):
                self.assertLess(resident_kib(pid), kib + 2048)
            for sequence in held:
                self.assertEqual(tier.request("DELETE", f"/v1/sequences/{sequence}").status, 200)
            self.assertEqual(client.wait(), 0, client.output())
            self.assertIn(expected, client.output())
            client.close()
            tier.wait_all_free()


class Idle(unittest.TestCase):
    def test_idle_processes_use_next_to_nothing(self):
        with Tier(pools=(2,)) as tier:
            pids = [tier.control.process.popen.pid, *tier.pools["pool0"].pids().values()]
            time.sleep(1)

            def used():
                ticks = os.sysconf("SC_CLK_TCK")
                out = []
                for pid in pids:
                    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
                    fields = fields.split()
                    out.append((int(fields[11]) + int(fields[12])) / ticks)
                return out
            before, begin = used(), time.monotonic()
            time.sleep(4)
            seconds = time.monotonic() - begin
            for pid, a, b in zip(pids, before, used()):
                # The target is 2%; a tick is 10 ms.
                self.assertLessEqual(b - a, 0.02 * seconds + 0.02, pid)


class Security(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.token_file = pathlib.Path(cls.folder.name, "token")
        cls.token_file.write_text(TOKEN + "\n")
        cls.tier = Tier(pools=(1,), token=TOKEN,
                        control_flags=["--token-file", cls.token_file],
                        worker_flags=["--token-file", cls.token_file])

    @classmethod
    def tearDownClass(cls):
        cls.tier.__exit__()
        cls.folder.cleanup()

    def test_programs_use_the_token(self):
        flags = ["--requests", "2", "--length-scale", "0.02", "--service", self.tier.url]
        result = run("replay", *flags)
        self.assertEqual(result.status, 1, result)
        self.assertIn("token", result.stderr)
        well(self, "replay", *flags, "--token-file", self.token_file)

    def test_a_worker_without_the_token_does_not_join(self):
        result = run("worker", "--control", self.tier.url, "--name", "stranger", "--kv-gib", "0.01")
        self.assertEqual(result.status, 1, result)
        self.assertIn("permission_denied", result.stderr)

    def test_garbage_on_every_port(self):
        ports = {int(self.tier.address.rpartition(":")[2])}
        for worker in self.tier.cluster()["pools"][0]["workers"]:
            ports.add(int(worker["address"].rpartition(":")[2]))
        self.assertEqual(len(ports), 2)
        for port in ports:
            for length in (1, 10, 100, 10_000, 1_000_000):
                for data in (ABORTS_UCX, os.urandom(length), b"\0" * length, b"\xff" * length,
                             b"GET / HTTP/1.1\r\n" * (length // 16 + 1)):
                    with socket.create_connection(("127.0.0.1", port)) as connection:
                        try:
                            connection.sendall(data)
                        except OSError:
                            pass
        self.test_programs_use_the_token()


if __name__ == "__main__":
    unittest.main()
