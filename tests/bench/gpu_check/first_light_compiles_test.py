#!/usr/bin/env python3
# The first questions compile from the sources that are packed, by the one line of nvcc that stands in
# first_light.cu; so does their debug build. Needs the toolkit, but no GPU:
# first_light_compiles_test.py NVCC
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

NVCC = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parents[3]


def line_of(source):
    """The words of the command in the source's first comment."""
    comment = re.search(r"(?m)^// {3}(nvcc .*(?:\n// {5}.*)*)", source.read_text()).group(1)
    return shlex.split(comment.replace("\n//", " "))


class FirstLight(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="first_light_"))
        self.addCleanup(shutil.rmtree, self.folder)
        sources = subprocess.run(
            ["bash", "-c", "source bench/gpu_check/pack.sh && first_light_sources"], cwd=ROOT,
            text=True, stdout=subprocess.PIPE, check=True).stdout.split()
        for name in sources:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)
        self.line = line_of(self.folder / "tests/gpu/first_light.cu")
        self.assertIn("tests/gpu/first_light.cu", self.line)

    def compile(self, *more):
        done = subprocess.run([NVCC, *self.line[1:], "-Werror=all-warnings", *more],
                              cwd=self.folder, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_compiles_by_one_line(self):
        self.compile()
        self.assertTrue((self.folder / "first_light").exists())

    def test_so_does_its_debug_build(self):
        self.compile("-DTRIBUTARY_WAIT_TRACE=1", "-ptx")  # the assembler adds nothing here
        self.assertIn("trace_words", (self.folder / "first_light").read_text())


if __name__ == "__main__":
    unittest.main()
