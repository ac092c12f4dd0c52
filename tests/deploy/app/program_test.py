#!/usr/bin/env python3
# The program `tributary` as a user sees it: exit statuses, errors in one line, reports.
# Run by ctest, one class a test, with the program's path in TRIBUTARY_PROGRAM.
import contextlib
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import (ENDLESS, LIMIT_S, PROGRAM, SMALL, TINY, Process, catches,  # noqa: E402
                     handling, run, run_on_terminal)

REQUEST = '{"timestamp": %d, "input_length": %d, "output_length": %d}\n'


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def expect_refusal(self, arguments, *words, ranks=0, status=2):
        """Nothing on stdout, and one line on stderr that has all the words."""
        result = run(*arguments, ranks=ranks)
        with self.subTest(arguments=list(map(str, arguments)), ranks=ranks):
            self.assertEqual(result.status, status, result)
            self.assertEqual(result.stdout, "")
            self.assertEqual(len(result.own_lines()), 1, result)
            if ranks == 0:
                self.assertEqual(len(result.stderr.splitlines()), 1, result)
            for word in words:
                self.assertIn(str(word), result.own_lines()[0])

    def run_well(self, *arguments, ranks=0):
        result = run(*arguments, ranks=ranks)
        self.assertEqual(result.status, 0, result)
        self.assertEqual(result.own_lines(), [], result)
        return result

    def corrupted_tiny(self):
        """tiny.safetensors with the sign of one weight flipped."""
        blob = bytearray(TINY.read_bytes())
        header = struct.unpack("<Q", blob[:8])[0]
        tensors = json.loads(blob[8:8 + header])
        begin, end = tensors["self_attn.q_b_proj.weight"]["data_offsets"]
        blob[8 + header + (begin + end) // 4 * 2 + 1] ^= 0x80
        return self.file("flipped.safetensors", bytes(blob))


class Answers(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *unused):
        pass


@contextlib.contextmanager
def serving(handler):
    """The URL of a server."""
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def users_of(url):
    """The commands that talk to a control plane."""
    return (["top", url, "--once"], ["verify", TINY, "--service", url],
            ["prefill", TINY, "--service", url], ["replay", "--requests", 1, "--service", url])


class Usage(Case):
    def test_a_report_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([PROGRAM, "info"], stdout=full, stderr=subprocess.PIPE,
                                    text=True, timeout=LIMIT_S)
        self.assertEqual(result.returncode, 1, result)
        self.assertEqual(result.stderr,
                         "tributary: stdout cannot be written: No space left on device\n")

    def test_closed_descriptors_are_opened_to_nothing(self):
        for closed in ("<&- >&-", "<&-", ">&-"):
            result = subprocess.run(["sh", "-c", f'exec "$0" info {closed}', PROGRAM], text=True,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                    timeout=LIMIT_S)
            self.assertEqual((result.returncode, result.stderr), (0, ""), closed)

    def test_nohup_is_obeyed(self):
        with Process(["control", "--listen", "127.0.0.1:0"], before=["nohup"]) as control:
            url = re.search(r"http://\S+", control.popen.stdout.readline().decode())[0]
            self.assertEqual(handling(control.popen.pid, signal.SIGHUP), {"ignored"})
            os.kill(control.popen.pid, signal.SIGHUP)
            self.assertIn("no pool has registered", self.run_well("top", url, "--once").stdout)
            os.kill(control.popen.pid, signal.SIGTERM)
            self.assertEqual(control.wait().status, 0)

    def test_files_and_work_have_bounds(self):
        self.expect_refusal(["plan", "--machine", "/dev/zero"], "/dev/zero", "1048576 bytes")
        self.expect_refusal(["simulate", "--costs", "/dev/zero"], "/dev/zero", "1048576 bytes")
        self.expect_refusal(["plan", "--gpu", "h200", "--nodes", 1024, "--table"], "8192 workers",
                            "at most 1024")
        self.expect_refusal(["simulate", "--pools", 65536], "65536", "131072")

    def test_a_malformed_answer_of_a_service_is_no_flag_of_ours(self):
        class Nonsense(Answers):
            def do_GET(self):
                self.answer(200, b'{"alive": true}' if self.path == "/healthz" else b"{}")

            def do_POST(self):
                error = {"code": "malformed_input", "message": "a worker sent: nonsense"}
                self.answer(400, json.dumps({"error": error}).encode())
        with serving(Nonsense) as url:
            for command in users_of(url):
                self.expect_refusal(command, "malformed_input", status=1)
            bad = self.file("bad.safetensors", b"x")
            for command in ("verify", "prefill"):
                self.expect_refusal([command, bad, "--service", url], bad)

    def test_another_programs_server_is_called_one(self):
        class Page(Answers):
            def do_GET(self):
                self.answer(404, b"<html>\n<body>\nnot found\n</body>\n</html>\n", "text/html")

            do_POST = do_GET
        with serving(Page) as url:
            for command in users_of(url):
                self.expect_refusal(command, f"no Tributary answers at {url}", "status 404",
                                    "text/html", status=1)

    def test_too_large_an_answer_is_no_flag_of_ours(self):
        class Endless(Answers):
            def do_GET(self):
                if self.path == "/healthz":
                    return self.answer(200, b'{"alive": true}')
                self.send_response(200)
                self.send_header("Content-Length", str(2**40))
                self.end_headers()
        with serving(Endless) as url:
            self.expect_refusal(["top", url, "--once"], "too_large", "16777216 bytes", status=1)

    def test_a_silent_control_plane_is_announced_after_two_seconds(self):
        with socket.create_server(("127.0.0.1", 0)) as silent, contextlib.ExitStack() as stack:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            begin = time.monotonic()
            commands = [stack.enter_context(Process(command)) for command in (
                ["top", url, "--once"], ["verify", TINY, "--service", url],
                ["prefill", TINY, "--service", url],
                ["replay", "--requests", 1, "--service", url])]
            for command in commands:
                line = command.popen.stderr.readline().decode()
                with self.subTest(arguments=command.popen.args[1:]):
                    self.assertEqual(line, f"tributary: no answer from {url} yet; waiting\n")
                    self.assertGreater(time.monotonic() - begin, 2)

    def test_help_and_version_are_on_stdout(self):
        for arguments in (["--help"], ["-h"], ["verify", "--help"], ["replay", "-h"],
                          ["simulate", "--help"], ["info", "--help"], ["--version"], ["-V"], ["info"],
                          ["help"], ["help", "up"]):
            result = run(*arguments)
            self.assertEqual((result.status, result.stderr), (0, ""), arguments)
            self.assertGreater(len(result.stdout), 5, arguments)

    def test_what_is_not_understood(self):
        self.expect_refusal([], "no command", "verify, replay, simulate, top, bench, plan, config and info", "--help")
        self.expect_refusal(["replay", "--layers", "many"], "--layers", "'many'", "1 to 1024")
        self.expect_refusal([*SMALL, "--merge-order", "fast"], "fast", "backend cpu", "cuda")

    def test_flags_of_a_worker_that_is_started_alone_belong_together(self):
        for flags in (["--slots", "2"], ["--slot", "1"], ["--leader", "127.0.0.1:1"],
                      ["--slots", "2", "--slot", "1", "--leader", "127.0.0.1:1"]):
            self.expect_refusal(["worker", *flags], "--slots, --leader and --pool-secret-file")

    def test_names_that_do_not_exist_list_what_does(self):
        for command in (SMALL, ["simulate", "--requests", "5"]):
            self.expect_refusal([*command, "--shape", "gpt"], "'gpt'", "deepseek-v3",
                                "deepseek-v2", "deepseek-v2-lite", "kimi-k2")
        self.expect_refusal(["plan", "--shape", "glm-5", "--forward"], "'glm-5'", "kimi-k2", status=2)
        self.expect_refusal(["bench", "--shape", "minicpm3"], "512 + 64", "256 + 32", status=2)
        for command in (SMALL, ["verify", TINY], ["bench"]):
            self.expect_refusal([*command, "--backend", "abacus"], "'abacus'", "cpu", "reference")


class BadFiles(Case):
    def test_missing(self):
        absent = self.folder / "absent"
        for command in ("verify", "replay", "simulate"):
            self.expect_refusal([command, absent], absent)
            self.expect_refusal([command, self.folder], self.folder)

    def test_safetensors(self):
        tiny = TINY.read_bytes()
        for content in (b"", b"x", tiny[:1000], tiny[:-1], tiny + b"x", bytes(range(256))):
            path = self.file("bad.safetensors", content)
            self.expect_refusal(["verify", path], path)
            self.expect_refusal(["verify", TINY, path, "--workers", "3"], path)

    def test_another_kind_of_file(self):
        self.expect_refusal(["verify", "/etc/passwd"],
                            "tributary: malformed_input: /etc/passwd: not a safetensors file")

    def test_traces_are_refused_with_the_line(self):
        good = REQUEST % (0, 10, 3)
        for bad in ("{", "[]", "{}", '{"timestamp": 0}', REQUEST % (0, 0, 3), REQUEST % (0, 10, -1),
                    REQUEST % (0, 10**12, 3), '{"timestamp": "0", "input_length": 1}', "\0"):
            path = self.file("bad.jsonl", good + "\n" + good + bad + "\n" + good)
            for command in ("replay", "simulate"):
                self.expect_refusal([command, path], path, "line 4")
        for empty in ("", "\n \n"):
            path = self.file("empty.jsonl", empty)
            for command in ("replay", "simulate"):
                self.expect_refusal([command, path], "no request")

    def test_report_that_cannot_be_written_is_refused_before_the_work(self):
        for command in (SMALL, ["simulate", "--requests", "5"]):
            self.expect_refusal([*command, "--json", self.folder / "no" / "r.json"], "r.json")
            self.expect_refusal([*command, "--json", self.folder], self.folder)
        self.expect_refusal(["simulate", "--svg", self.folder / "no" / "r.svg"], "r.svg")


class ModelFiles(Case):
    """Other people's files, with and without weights: `tests/data/cases`."""
    FILES = pathlib.Path(__file__).resolve().parents[2] / "data" / "cases" / "models"

    def test_a_pool_without_weights_is_planned_for_all_of_them(self):
        for path in sorted(self.FILES.glob("*.json")):
            if path.stem in ("v4-like", "glm-5.3-flash"):
                self.expect_refusal(["plan", "--shape", path], path.name, "model_type is")
            else:
                self.run_well("plan", "--shape", path, "--context", 4096)

    def test_no_weights_are_promised_that_the_loader_refuses(self):
        for name, words in (
                ("v3-awq", "quant_method is '\"awq\"'"),
                ("v3-modelopt-nvfp4", "quant_method is '\"modelopt\"'"),
                ("v3-mscale-absent", "transformers multiplies cos and sin by 1.3689"),
                ("longcat-flash-yarn", "model_type is '\"longcat_flash\"'"),
                ("minicpm3-4b", "model_type is '\"minicpm3\"'"),
                ("v4-like", "model_type is '\"deepseek_v4\"'"),
                ("glm-5.3-flash", "model_type is '\"glm5_next_text\"'")):
            path = self.FILES / f"{name}.json"
            self.expect_refusal(["plan", "--model", path, "--forward"], path, words)
        for name in ("kimi-k2.5", "v3-infinity", "v3-integers-as-floats"):
            self.run_well("plan", "--model", self.FILES / f"{name}.json", "--forward")
        config = self.file("config.json", (self.FILES / "v3-infinity.json").read_bytes())
        beside = self.file("hf_quant_config.json", '{"quantization": {"quant_algo": "NVFP4"}}')
        self.expect_refusal(["plan", "--model", config, "--forward"], beside, "NVFP4")

    def test_other_files_are_called_what_they_are(self):
        for name, words in (("lfs", "a Git LFS pointer"), ("page", "an HTML page")):
            path = self.FILES / f"{name}.safetensors"
            for command in (["verify", path], ["plan", "--shape", path], ["plan", "--model", path]):
                self.expect_refusal(command, path, f"is {words}")
        for flag in ("--shape", "--model"):
            self.expect_refusal(["plan", flag, self.folder], self.folder, "is a directory")


class BadSizes(Case):
    def test_a_sequence_longer_than_the_pool_is_refused_before_the_work(self):
        path = self.file("long.jsonl", REQUEST % (0, 10, 3) + REQUEST % (1, 100000, 5))
        for spread in ("auto", "single", "all"):
            self.expect_refusal(["replay", path, "--kv-gib", "0.05", "--spread", spread,
                                 "--workers", "2"], "request 1", "1563 pages", "728 on each of 2")
        long = self.file("only_long.jsonl", REQUEST % (0, 100000, 5))
        self.expect_refusal(["simulate", long, "--kv-gib", "0.05", "--workers", "2"],
                            "none of the 1 requests")

    def test_memory_for_no_page_and_for_too_many(self):
        for workers in ("1", "3"):
            replay = ["replay", "--requests", "1", "--workers", workers]
            self.expect_refusal([*replay, "--kv-gib", "0.00001"], "--kv-gib")
            self.expect_refusal([*replay, "--kv-gib", "99999"], "memory")
        self.expect_refusal(["simulate", "--kv-gib", "0.00001"], "--kv-gib")

    def test_more_workers_than_pages_are_needed(self):
        path = self.file("short.jsonl", (REQUEST % (0, 40, 20)) * 3)
        # A page on each of 8 workers, of which a sequence takes one.
        result = self.run_well("replay", path, "--kv-gib", 73728 / 2**30 * 1.01, "--workers", 8)
        self.assertEqual(result.figure("pages").split()[2], "8")

    def test_leaves_that_are_no_power_of_two(self):
        for command in (SMALL, ["simulate"], ["verify", TINY]):
            arguments = [a for a in command if a not in ("--leaf-tokens", "64")]
            self.expect_refusal([*arguments, "--leaf-tokens", "100"], "--leaf-tokens", "100")


class Reports(Case):
    def test_info(self):
        text = self.run_well("info").stdout
        for word in ("tributary", "cpu/", "reference", "threads", "deepseek-v3", "kimi-k2",
                     "70272"):
            self.assertIn(word, text)

    def test_replay(self):
        path = self.folder / "r.json"
        path.write_text("an older report, longer than the new one" * 1000)
        result = self.run_well(*SMALL, "--workers", 3, "--canary-rate", 1, "--spread", "all",
                               "--json", path)
        report = json.loads(path.read_text())
        self.assertEqual(report["digest"], result.figure("digest"))
        self.assertRegex(report["digest"], "^[0-9a-f]{16}$")
        self.assertGreater(report["tokens_per_second"], 0)
        for percentiles in (report["step_us"], *report["phase_us"].values()):
            self.assertLessEqual(percentiles["p50"], percentiles["p99"])
        self.assertLessEqual({"plan", "query_exchange", "attend", "partial_exchange", "combine"},
                             set(report["phase_us"]))
        self.assertGreaterEqual(report["balance"], 1)
        self.assertGreater(report["exchange_bytes"], 0)
        self.assertEqual(report["exchange_bytes"], report["planned_exchange_bytes"])
        self.assertGreater(report["canary_max_relative_error"], 0)
        self.assertLessEqual(report["canary_max_relative_error"], 1e-2)
        self.assertEqual(report["pages_in_use_at_end"], 0)
        self.assertEqual((report["workers"], report["communicator"]), (3, "threads"))

    def test_replay_of_a_trace_takes_the_first_requests(self):
        path = self.file("t.jsonl", "".join(REQUEST % (i, 50 + i, 1 + i) for i in range(9)))
        self.assertIn("3 tokens of 2 requests", self.run_well("replay", path, "--requests", 2)
                      .figure("decoded"))
        self.assertIn("45 tokens of 9 requests", self.run_well("replay", path, "--requests", 0)
                      .figure("decoded"))

    def test_simulate(self):
        path = self.folder / "s.json"
        result = self.run_well("simulate", "--requests", 200, "--workers", 8, "--running", 16,
                               "--json", path)
        report = json.loads(path.read_text())
        self.assertEqual([point["spread"] for point in report["points"]], ["single", "all", "auto"])
        for point in report["points"]:
            requests = point["requests"]
            self.assertEqual(requests["arrived"], sum(requests.values()) - requests["arrived"])
            self.assertLessEqual(point["tpot_ms"]["p50"], point["tpot_ms"]["p99"])
            self.assertTrue(point["checks"]["bytes_agree"])
            self.assertEqual(point["checks"]["worst_difference"], 0)
        self.assertIn("200 requests", result.stdout)

    def test_verify(self):
        result = self.run_well("verify", TINY, "--workers", 2)
        self.assertIn("verified on 2 workers (threads)", result.stdout)
        self.assertIn("verified on 1 worker (self)", self.run_well("verify", TINY).stdout)
        self.run_well("verify", TINY, "--query", "bf16")

    def test_verify_says_what_rows_cost(self):
        text = self.run_well("verify", "--rows", "fp8_ds_mla").stdout
        self.assertIn("fp8_ds_mla beside bf16", text)
        self.assertRegex(text, r"scores of deviation 1: o 0\.02\d\d relative")
        self.assertIn("8 columns 20 times as large", text)
        self.expect_refusal(["verify"], "FILE is required", "--rows")
        self.expect_refusal(["verify", TINY, "--rows", "fp8"], "--rows")

    def test_verify_fails_on_a_flipped_weight(self):
        path = self.corrupted_tiny()
        for arguments in ([path], [path, "--workers", 3], [TINY, path], [path, TINY]):
            result = run("verify", *arguments)
            self.assertEqual(result.status, 1, result)
            self.assertIn("TOO LARGE", result.stdout)
            self.assertIn("FAILED", result.stdout.splitlines()[-1])


class ReportFiles(Case):
    def test_stdout_takes_the_json_alone(self):
        for command in (SMALL, ["plan"], ["simulate", "--requests", "5"]):
            result = run(*command, "--json", "-")
            self.assertEqual(result.status, 0, result)
            self.assertGreater(len(json.loads(result.stdout)), 3)
            self.assertIn("\n", result.stderr)  # the text
        self.assertFalse(pathlib.Path("-").exists())
        self.assertEqual(json.loads(self.run_well("info", "--json").stdout)["version"],
                         self.run_well("--version").stdout.split()[1])

    def test_a_run_that_fails_leaves_no_file(self):
        path = self.folder / "r.json"
        self.expect_refusal(["replay", "/absent", "--json", path], "/absent")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_baseline_is_compared_with(self):
        path = self.folder / "a.json"
        self.run_well(*SMALL, "--json", path)
        text = self.run_well(*SMALL, "--workers", "2", "--baseline", path).stdout
        self.assertIn(f"\nbeside {path}\n", text)
        self.assertRegex(text, r"other workers +1, now 2\n")
        self.assertNotIn("other digest", text)
        self.assertRegex(text, r"(?m)^  tokens_per_second +[\d.e+]+ +[\d.e+]+ +[\d.]+$")

    def test_a_baseline_is_read_before_the_run(self):
        # A run of hours, of which nothing would be left.
        for bad in (self.folder / "absent.json", self.file("other.json", "{}")):
            self.expect_refusal([*ENDLESS, "--baseline", bad], bad)

    def test_a_signal_ends_a_run_with_a_report(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            path = self.folder / f"{number}.json"
            with Process([*ENDLESS, "--json", path]) as work:
                work.wait_until(lambda: catches(work.popen.pid, number), "it has begun")
                work.popen.send_signal(number)
                result = work.wait()
            self.assertEqual(result.status, 128 + number, result)
            self.assertTrue(result.stdout.startswith("PARTIAL: ended by SIG"), result)
            self.assertRegex(result.figure("pages"), " 0 at the end$")
            self.assertTrue(json.loads(path.read_text())["partial"])


class Devices(Case):
    def info(self, name):
        lines = self.run_well("info").stdout.splitlines()
        return next(line[len(name):].strip() for line in lines if line.startswith(name + " "))

    def test_info_says_what_is_there(self):
        for name in ("cuda", "nccl"):
            self.assertRegex(self.info(name), r"not in this build|unusable: .+|\d+\.\d+")

    def test_cuda_that_cannot_run_says_why_in_one_line(self):
        cuda = self.info("cuda")
        if "unusable" not in cuda and "not in this build" not in cuda:
            self.skipTest("there is a GPU: " + cuda)
        why = cuda.partition("unusable: ")[2] or "this build has no CUDA"
        for command in (SMALL, [*SMALL, "--workers", "2"], ["verify", TINY], ["bench"],
                        ["bench", "--workers", "2"]):
            self.expect_refusal([*command, "--backend", "cuda"], "cuda cannot run here", why)
        self.assertNotIn("cuda", self.info("backends"))


class Terminal(unittest.TestCase):
    def test_progress_is_shown_on_a_terminal_alone(self):
        status, shown = run_on_terminal(*SMALL, "--workers", "2")
        self.assertEqual(status, 0, shown)
        self.assertRegex(shown, r"\r\[[# ]{20}\] +[0-9]+%  [0-9]+ of [0-9]+ tokens")
        self.assertTrue(shown.endswith("\r\x1b[K"), repr(shown))  # and cleared
        self.assertEqual(run(*SMALL).stderr, "")

    def test_an_error_comes_after_the_bar(self):
        status, shown = run_on_terminal("replay", "/absent")
        self.assertEqual(status, 2)
        self.assertTrue(shown.startswith("tributary: io: /absent"), repr(shown))


if __name__ == "__main__":
    unittest.main()
