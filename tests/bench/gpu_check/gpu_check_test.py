#!/usr/bin/env python3
# bench/gpu_check.sh on the emulated device: what is planted (a kernel that computes wrongly, one that
# never ends, a crash, a library that is missing) is reported as what it is, and nothing else stops.
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "bench/gpu_check.sh"


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu_check_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.program = self.folder / "bin/first_light"
        self.program.parent.mkdir()
        self.program.symlink_to(os.environ["TRIBUTARY_FIRST_LIGHT"])
        self.results = self.folder / "out"

    def run_script(self, *arguments, plant=None, status=0):
        environment = dict(os.environ)
        if plant:
            environment["TRIBUTARY_PLANT"] = plant
        done = subprocess.run([SCRIPT, *arguments], env=environment, text=True, timeout=200,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def check(self, *arguments, plant=None, status=0):
        out = self.run_script("--emulated", str(self.folder), "--results", str(self.results),
                              *arguments, plant=plant, status=status)
        # What is printed is also in the folder, as it came.
        self.assertIn((self.results / "results.txt").read_text().strip(), out)
        return out

    def test_what_is_right_passes(self):
        out = self.check("--only", "light.merge", "--only", "light.few1")
        self.assertRegex(out, r"(?m)^passed +light\.merge")
        self.assertRegex(out, r"(?m)^passed +light\.few1")
        self.assertIn("all passed", out)
        self.assertIn("0 of 8 cases wrong", (self.results / "light.few1.log").read_text())

    def test_a_wrong_kernel_is_named_with_what_to_suspect_and_the_rest_goes_on(self):
        out = self.check("--only", "light.few1", "--only", "light.merge", plant="wrong", status=1)
        self.assertRegex(out, r"(?m)^FAILED +light\.few1 .*exit status 1: few1: 8 of 8 cases wrong")
        self.assertRegex(out, r"(?m)^passed +light\.merge")
        self.assertIn("only columns from 256: the exchange of weights", out)
        self.assertIn("NOT all passed: light.few1", out)

    def test_a_kernel_that_never_ends_is_stopped_and_the_rest_is_named(self):
        out = self.check("--only", "light.few1", "--only", "light.many", "--budget", "9",
                         plant="hang", status=1)
        self.assertRegex(out, r"(?m)^TIMED-OUT light\.few1 .*its limit is [1-4] s")
        self.assertRegex(out, r"(?m)^not-run +light\.many1 .*budget of 9 s is used up")

    def test_a_crash_and_a_program_that_skips_itself_are_failures(self):
        out = self.check("--only", "light.few1", plant="crash", status=1)
        self.assertRegex(out, r"(?m)^CRASHED +light\.few1 .*by SIGABRT")
        out = self.check("--only", "light.few1", plant="skip", status=1)
        self.assertRegex(out, r"(?m)^FAILED +light\.few1 .*skipped itself on an emulated GPU")

    def test_a_library_that_is_missing_is_named(self):
        program = self.program.read_bytes()
        self.assertIn(b"\0libstdc++.so.6\0", program)
        self.program.unlink()
        self.program.write_bytes(program.replace(b"\0libstdc++.so.6\0", b"\0libstdc++.so.X\0"))
        self.program.chmod(0o755)
        out = self.check("--only", "light.few1", status=1)
        self.assertRegex(out, r"(?m)^FAILED +light\.few1 .*could not start: .*libstdc\+\+\.so\.X")

    def test_a_program_that_was_not_built_is_left_out_by_name(self):
        self.program.unlink()
        self.assertRegex(self.check("--only", "light.few1"), "left-out .*first_light was not built")

    def test_flags_and_folders_that_are_wrong_are_refused(self):
        self.assertIn("unknown argument", self.run_script("--fast", status=2))
        self.assertIn("needs a value", self.run_script("--from", status=2))
        self.assertIn("expected seconds", self.run_script("--budget", "x", status=2))
        self.assertIn("not what --pack made", self.run_script("--from", "/nowhere", status=2))

    @unittest.skipIf(shutil.which("nvidia-smi"), "there may be a GPU here")
    def test_without_a_gpu_nothing_is_done_and_that_is_said(self):
        self.assertIn("no GPU here", self.run_script("--from", str(self.folder), status=3))

    def test_the_plan_names_programs_that_are_packed_and_symptoms_that_have_a_suspect(self):
        packed = re.search(r"packed_programs=\(([^)]*)\)",
                           (ROOT / "bench/gpu_check/pack.sh").read_text()).group(1).split()
        plan = (ROOT / "bench/gpu_check/plan.sh").read_text()
        self.assertLessEqual(set(re.findall(r"@(\w+)", plan)), set(packed) | {"PROGRAM"})
        probes = "".join((ROOT / "tests/gpu" / name).read_text() for name in
                         ("first_light.cu", "first_light_probes.cuh", "first_light_cases.h"))
        symptoms = set(re.findall(r'symptom: ([^%\\"]+)\\n', probes))
        self.assertGreater(len(symptoms), 8)
        for symptom in symptoms:
            self.assertRegex(plan, rf'["| ]{re.escape(symptom)}["| )]')
        for question in re.findall(r"@first_light (\w+)", plan):
            self.assertIn(f'"{question}"', probes)


if __name__ == "__main__":
    unittest.main()
