#!/usr/bin/env python3
# The report of ptxas on attend.cu: no kernel spills, but for a few words of those that MAY_SPILL names.
# Needs the toolkit, but no GPU: attend_compiler_test.py NVCC SOURCE_ROOT
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

NVCC, ROOT = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
# Few rows: 16, 32, 64, and 16 in two blocks, with rows of bf16 and of codes; generic: three types of
# rows times two of queries; each over all rows and over selected ones; merge.
KERNELS = 29
# Two blocks on a multiprocessor; codes of 64 selected rows, and in the generic kernel.
MAY_SPILL = re.compile(r"few_rows_kernelILi1ELb[01]ELb[01]ELi2E|few_rows_kernelILi4ELb1ELb1E|"
                       r"generic_kernelIN[^E]*Codes")
# Of a thread: what waits while leaves are merged.
MOST_SPILLED_BYTES = 48


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
                spills = re.findall(r"entry function '(\w+)'.*?(\d+) bytes spill stores, "
                                    r"(\d+) bytes spill loads", report(architecture), re.DOTALL)
                self.assertEqual(len(spills), KERNELS)
                for kernel, *counts in spills:
                    most = MOST_SPILLED_BYTES if MAY_SPILL.search(kernel) else 0
                    self.assertLessEqual(max(map(int, counts)), most, kernel)


if __name__ == "__main__":
    unittest.main()
