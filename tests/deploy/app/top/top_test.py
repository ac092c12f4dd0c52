#!/usr/bin/env python3
# `tributary top` on a running tier: once for scripts, and on a terminal of 80 x 24.
import fcntl
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "service"))
from tier import Tier  # noqa: E402
from program import LIMIT_S, PROGRAM, Process, run  # noqa: E402

TOKEN = "0123456789abcdef0123456789abcdef"


def screens(arguments, wanted, columns=80, rows=24):
    """What a terminal received until `wanted` pictures had arrived."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    with subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=theirs, stderr=theirs,
                          stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = ""
        end = time.monotonic() + LIMIT_S
        while shown.count("\x1b[J") < wanted and time.monotonic() < end:
            if select.select([ours], [], [], 1)[0]:
                try:
                    shown += os.read(ours, 65536).decode()
                except OSError:
                    break
        process.terminate()
        process.wait()
        os.close(ours)
    return shown.split("\x1b[J")[:wanted]


def watched(arguments, end):
    """The exit status of a program whose terminal types `end` after the first picture, and what it
    showed. The program has a terminal of its own, as in a shell."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PROGRAM, [PROGRAM, *map(str, arguments)])
    shown = b""
    typed = False
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        if select.select([terminal], [], [], 1)[0]:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # it has ended
                break
            shown += part
        if not typed and b"\x1b[J" in shown:
            os.write(terminal, end)
            typed = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


class Top(unittest.TestCase):
    def test_a_tier_at_work(self):
        with tempfile.TemporaryDirectory() as folder:
            token = pathlib.Path(folder, "token")
            token.write_text(TOKEN)
            token.chmod(0o600)
            with Tier(pools=(2,), worker_flags=["--layers", "2", "--token-file", token],
                      control_flags=["--token-file", token], token=TOKEN) as tier:
                with open(pathlib.Path(folder, "replay"), "wb") as log:
                    self.watch(tier, token, log)

    def watch(self, tier, token, log):
        flags = [tier.url, "--token-file", token]
        busy = ["replay", "--service", tier.url, "--token-file", token, "--requests",
                "100000", "--length-scale", "0.02", "--canary-rate", "0"]
        with Process(busy, output=log) as work:
            work.wait_until(lambda: tier.metric("tributary_tokens_total") > 1000, "tokens")
            # A second apart no heartbeat may come between, where the pool is held up.
            once = run("top", *flags, "--once", "--interval-ms", 5000)
            pictures = screens(["top", *flags], 4)
            self.assertIsNone(work.popen.poll(), "the replay has ended too early")
        self.assertEqual(once.status, 0, once)
        self.assertNotIn("\x1b", once.stdout)
        self.assertRegex(once.stdout, rf"^tributary \S+  {re.escape(tier.url)}  ready  up [\dms ]+\n")
        self.assertIn("pool pool0: serving, 2 workers", once.stdout)
        self.assertRegex(once.stdout, r"(?m)^  [\d.]+k? tokens/s   [\d.]+k? rounds/s")
        self.assertGreater(float(re.search(r"([\d.]+)k? tokens/s", once.stdout)[1]), 0, once)
        self.assertRegex(once.stdout, r"step p50 [\d.]+(us|ms|s) p99")
        for rank in (0, 1):
            self.assertRegex(once.stdout, rf"(?m)^ +{rank}  serving   \[[# -]{{20}}\] +\d+%")
        self.assertRegex(once.stdout, r"(?m)^  phase .*attend")
        for line in once.stdout.splitlines():
            self.assertLessEqual(len(line), 80, line)

        self.assertEqual(len(pictures), 4)
        self.assertTrue(pictures[0].startswith("\x1b[?1049h"))  # the alternate screen
        for picture in pictures[1:]:
            self.assertTrue(picture.startswith("\x1b[H"))
            self.assertIn("pool pool0: serving", picture)
            self.assertLess(picture.count("\r\n"), 24)
        self.assertNotEqual(pictures[1], pictures[3])  # it moves
        small = screens(["top", *flags], 2, rows=8)[1]
        self.assertLess(small.count("\r\n"), 8)
        self.assertIn("arrows and pages scroll, q ends", small)
        narrow = screens(["top", *flags], 2, columns=40)[1]
        for line in narrow.replace("\x1b[H", "").replace("\x1b[K", "").split("\r\n"):
            self.assertLessEqual(len(line.rstrip("\r")), 40, line)
        for end in (b"q", b"\x03"):  # Ctrl-C
            status, shown = watched(["top", *flags], end)
            self.assertEqual(status, 0)
            self.assertTrue(shown.endswith("\x1b[?1049l"), repr(shown[-40:]))

        refused = run("top", tier.url, "--once")
        self.assertEqual(refused.status, 1, refused)
        self.assertIn("permission_denied", refused.stderr)
        self.assertIn("--token-file", refused.stderr)

    def test_nobody_answers(self):
        result = run("top", "http://127.0.0.1:1", "--once")
        self.assertEqual(result.status, 1, result)
        self.assertIn("tributary: unavailable: ", result.stderr)
        self.assertEqual(run("top", "--interval-ms", "1").status, 2)


if __name__ == "__main__":
    unittest.main()
