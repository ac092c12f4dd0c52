#!/usr/bin/env python3
# What CI counts: a test of ctest that failed counts as passed where it passed when it ran again, and
# its name is printed; nothing else changes by a second run.
import pathlib
import subprocess
import sys
import tempfile
import unittest

CASES = pathlib.Path(__file__).resolve().parents[2] / ".ci" / "cases.py"


def junit(**outcomes):
    tests = "".join(f'<testcase name="{name}" status="{status}"/>'
                    for name, status in outcomes.items())
    return f"<testsuite>{tests}</testsuite>"


class Cases(unittest.TestCase):
    def lines(self, first, again=None):
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder, "first.xml")]
            files[0].write_text(first)
            if again is not None:
                files += [pathlib.Path(folder), pathlib.Path(folder, "again.xml")]
                files[-1].write_text(again)
            done = subprocess.run([sys.executable, CASES, *files], capture_output=True, text=True,
                                  check=True, timeout=30)
        return done.stdout.splitlines()

    def test_one_run(self):
        self.assertEqual(self.lines(junit(A="run", B="fail", C="disabled")),
                         ["1 1 1", "failed: B"])

    def test_what_passes_again_is_named_and_does_not_fail(self):
        first = junit(A="run", B="fail", C="fail", D="fail")
        self.assertEqual(
            self.lines(first, junit(B="run", C="fail")),
            ["2 2 0", "failed: C", "failed: D",
             "unsteady: B failed, then passed three times by itself"])

    def test_a_pass_is_no_second_try(self):
        self.assertEqual(self.lines(junit(A="run"), junit(A="fail")), ["1 0 0"])


if __name__ == "__main__":
    unittest.main()
