#!/usr/bin/env python3
# The report of ptxas on the many-rows kernel: no spills, no serialised products, registers as set.
# Compiles it once, which needs the toolkit and no GPU: compiler_report_test.py NVCC SOURCE_ROOT
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

NVCC, ROOT = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
SOURCE = ROOT / "kernels/cuda/sm90/many_rows.cu"
KERNELS = 5  # one block, a cluster of two, one block over selected rows, and over both kinds of codes


def report():
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [NVCC, "-std=c++20", "-O3", "-DNDEBUG", f"-I{ROOT}", "--expt-relaxed-constexpr",
             "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas=-v", "-cubin", str(SOURCE),
             "-o", f"{folder}/many_rows.cubin"],
            capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(run.stderr)
    return run.stderr + run.stdout


class CompilerReport(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.text = report()

    def test_nothing_spills(self):
        spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                            r"(\d+) bytes spill loads", self.text)
        self.assertEqual([("0", "0", "0")] * KERNELS, spills, self.text)

    def test_products_stay_asynchronous(self):
        # C7510 and its neighbours: serialised products, injected waits, ignored setmaxnreg.
        self.assertNotRegex(self.text, r"C75\d\d|serialized|setmaxnreg")

    def test_blocks_start_with_the_registers_that_the_kernel_shares_out(self):
        # 65536 over three warpgroups, in steps of 8 (layout.h: kStartRegisters).
        wanted = 65536 // (3 * 128) // 8 * 8
        self.assertEqual([str(wanted)] * KERNELS, re.findall(r"Used (\d+) registers", self.text))


if __name__ == "__main__":
    unittest.main()
