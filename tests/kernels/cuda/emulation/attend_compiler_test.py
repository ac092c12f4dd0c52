#!/usr/bin/env python3
# The report of ptxas on attend.cu: no kernel spills. Needs the toolkit, but no GPU:
# attend_compiler_test.py NVCC SOURCE_ROOT
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

NVCC, ROOT = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
# Few rows: 16, 32, 64; generic: two types of rows times two of queries; each over all rows and over
# selected ones; merge.
KERNELS = 15


def report(architecture):
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [NVCC, "-std=c++20", "-O3", "-DNDEBUG", f"-I{ROOT}", "--expt-relaxed-constexpr",
             f"-arch={architecture}", "-Xptxas=-v", "-cubin",
             str(ROOT / "kernels/cuda/attend/attend.cu"), "-o", f"{folder}/attend.cubin"],
            capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(run.stderr)
    return run.stderr + run.stdout


class AttendCompiles(unittest.TestCase):
    def test_without_spills(self):
        for architecture in ("sm_80", "sm_90a"):
            with self.subTest(architecture):
                spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads",
                                    report(architecture))
                self.assertEqual(spills, [("0", "0")] * KERNELS)


if __name__ == "__main__":
    unittest.main()
