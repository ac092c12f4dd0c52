#!/usr/bin/env python3
# bench/moving_steps: phases with moves copy rows within their bound, those without copy none, and
# all have the same digest, which does not depend on the number of workers.
import pathlib
import re
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy"))
from program import run  # noqa: E402

PAGE_COPY = 64 * 1152
STEPS, LAYERS, REPEAT = 8, 2, 1
BOUNDS = [0, 4e6, 1e9]
SMALL = ["--sequences", "5", "--lengths", "300,700,40", "--leaf-tokens", "64", "--heads", "4",
         "--layers", LAYERS, "--steps", STEPS, "--repeat", REPEAT,
         "--move-bytes-per-s", ",".join(f"{bound:g}" for bound in BOUNDS)]


class Small(unittest.TestCase):
    def figures(self, *arguments, ranks=0):
        """Of each bound a row of numbers, and the digest."""
        result = run(*SMALL, *arguments, ranks=ranks)
        self.assertEqual(result.status, 0, result)
        rows = [[float(word) for word in line.split()] for line in result.stdout.splitlines()
                if re.fullmatch(r"( +[0-9.e+]+){9}", line)]
        self.assertEqual([row[0] for row in rows], BOUNDS, result)
        self.assertGreater(int(re.search(r"^(\d+) moves completed", result.stdout, re.M)[1]), 5)
        digest = re.search(r"^digest (\w+) in (\d+) of (\d+) phases", result.stdout, re.M)
        # The first, and two for each bound and repetition.
        self.assertEqual(digest[2], str(1 + 2 * REPEAT * len(BOUNDS)))
        self.assertEqual(digest[2], digest[3])
        return rows, digest[1]

    def test_phases_with_moves_copy_and_keep_every_bit(self):
        digests = set()
        for arguments, ranks in (([], 2), (["--workers", "3", "--threads", "1"], 0)):
            with self.subTest(arguments=arguments, ranks=ranks):
                rows, digest = self.figures(*arguments, ranks=ranks)
                digests.add(digest)
                for bound, moved, _, *times in rows:
                    self.assertTrue(all(time > 0 for time in times), rows)
                    self.assertLessEqual(times[0], times[1])  # p50, p99
                    if bound == 0:
                        self.assertEqual(moved, 0)
                # The second bound is worth less than a page in 10 ms: one a round at most.
                self.assertGreater(rows[1][2], 0)
                self.assertLessEqual(rows[1][2], 1.01e-6 * LAYERS * PAGE_COPY)
                self.assertGreater(rows[2][2], rows[1][2])
        self.assertEqual(len(digests), 1, "2 ranks and 3 threads decode the same tokens")

    def test_what_cannot_move_is_refused(self):
        for arguments, status, words in (
                (["--lengths", "63", "--leaf-tokens", "64"], 1, "no sequence has a full leaf of 64"),
                (["--workers", "1"], 2, "--workers"),
                (["--move-bytes-per-s", "-1"], 2, "--move-bytes-per-s")):
            with self.subTest(arguments=arguments):
                result = run(*arguments)
                self.assertEqual(result.status, status, result)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
