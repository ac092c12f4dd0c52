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
        self.program = self.folder / "bin/first_light_emulated"
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
        out = self.run_script("--from", str(self.folder), "--emulated", "--results",
                              str(self.results), *arguments, plant=plant, status=status)
        # Printed text is also in the folder, unchanged.
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
        out = self.check("--only", "light.few1", "--only", "light.many", "--budget", "14",
                         plant="hang", status=1)
        self.assertRegex(out, r"(?m)^TIMED-OUT light\.few1 .*its limit is [3-9] s")
        self.assertRegex(out, r"(?m)^not-run +light\.many1 .*budget of 14 s is used up")

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
        self.assertRegex(self.check("--only", "light.few1"), "left-out .*first_light_emulated was not built")

    def test_flags_and_folders_that_are_wrong_are_refused(self):
        self.assertIn("unknown argument", self.run_script("--fast", status=2))
        self.assertIn("needs a value", self.run_script("--from", status=2))
        self.assertIn("expected seconds", self.run_script("--budget", "x", status=2))
        self.assertIn("not what --pack made", self.run_script("--from", "/nowhere", status=2))
        self.assertIn("needs --from DIR", self.run_script("--emulated", status=2))

    def test_a_pack_names_the_package_that_is_missing(self):
        tools = self.folder / "tools"
        tools.mkdir()
        for name, text in {
                "cmake": "echo CMake Error: could not find TRIBUTARY_ISAL; exit 1",
                "apt-get": "exit 1",
                "dpkg-query": 'for name; do [[ $name == -* || $name == libisal-dev ]] || '
                              'echo "installed $name"; done'}.items():
            (tools / name).write_text(f"#!/bin/bash\n{text}\n")
            (tools / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}",
                       "TRIBUTARY_ANY_SYSTEM": "1"}
        done = subprocess.run([SCRIPT, "--pack", self.folder / "packed"], env=environment, text=True,
                              timeout=60, capture_output=True, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("needs what is missing here: libisal-dev\n", done.stderr)
        self.assertNotIn("CMake", done.stderr)

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
        for question in re.findall(r"@first_light(?:_emulated)? (\w+)", plan):
            self.assertIn(f'"{question}"', probes)


# The stand-in for every packed program on a machine that seems to have a GPU: a name may be given an
# end of its own.
FAKE = """#!/bin/bash
echo "$(basename "$0") $*" >>"$CALLS"
case "$(basename "$0") $*" in
  "first_light tma") echo "symptom: a tile lands elsewhere"; exit 1 ;;
  "first_light kmajor") exit 77 ;;
  "first_light generic") trap '' TERM; while :; do sleep 0.1; done ;;
  "gpu_bench "*orders*16) echo "goal canonical order, 16 heads 1.09 x fast NOT reached" ;;
  "gpu_backend_test --gtest_filter=*Merge*") kill -SEGV $$ ;;
esac
"""


class OnAMachineWithAGpu(unittest.TestCase):
    """The plan for a GPU, from its first check to its last, on a machine that only says it has one."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu_check_"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "bin").mkdir()
        (self.folder / "tools").mkdir()
        self.plan = re.findall(r'"([^"|]+)\|(\d+)\|([^"|]*)\|([^"]*)"', (
            ROOT / "bench/gpu_check/plan.sh").read_text().split("emulated_plan=")[0])
        for program in {name for _, _, _, command in self.plan
                        for name in re.findall(r"@(\w+)", command)}:
            self.fake(self.folder / "bin" / program, FAKE)
        # Runs what it is given to profile, as ncu does.
        profiler = '#!/bin/bash\nwhile [[ $1 != */bin/* ]]; do shift; done\nexec "$@"\n'
        self.fake(self.folder / "tools/ncu", profiler)
        self.fake(self.folder / "tools/compute-sanitizer", profiler)
        self.fake(self.folder / "tools/nvidia-smi", "#!/bin/bash\necho Paper GPU\n")
        self.calls = self.folder / "calls"

    @staticmethod
    def fake(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def run_script(self, *arguments, script=SCRIPT):
        environment = dict(os.environ, CALLS=str(self.calls), CUDA_HOME=str(self.folder / "toolkit"),
                           PATH=f"{self.folder}/tools:{os.environ['PATH']}")
        return subprocess.run(
            [script, "--from", str(self.folder), "--results", str(self.folder / "out"), *arguments],
            env=environment, text=True, timeout=200, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False)

    def test_every_check_runs_whatever_the_others_did(self):
        # The plan as it is, but for the limit of what hangs.
        scripts = self.folder / "scripts"
        shutil.copytree(ROOT / "bench/gpu_check", scripts / "gpu_check")
        shutil.copy(SCRIPT, scripts)
        plan = scripts / "gpu_check/plan.sh"
        plan.write_text(plan.read_text().replace('"light.generic|40|', '"light.generic|2|'))
        done = self.run_script(script=scripts / SCRIPT.name)
        out = done.stdout
        self.assertEqual(done.returncode, 1, out)
        for name, _, _, _ in self.plan:
            self.assertRegex(out, rf"(?m)^(passed|FAILED|TIMED-OUT|CRASHED) +{re.escape(name)} ")
        self.assertRegex(out, r"(?m)^FAILED +light\.tma ")
        self.assertRegex(out, r"(?m)^FAILED +light\.kmajor .*skipped itself on a machine with a GPU")
        self.assertRegex(out, r"(?m)^TIMED-OUT light\.generic .*it had to be killed")
        self.assertRegex(out, r"(?m)^CRASHED +suite\.merge .*SIGSEGV")
        self.assertIn("a tile lands elsewhere: the tensor map", out)
        self.assertRegex(out, r"Goals:\n +canonical order, 16 heads 1\.09 x fast NOT reached")
        self.assertIn("NOT all passed: light.tma light.kmajor light.generic suite.merge ", out)
        self.assertEqual(out.count("passed "), len(self.plan) - 4)

    def test_cublaslt_is_found_in_a_toolkit_and_in_python_packages(self):
        library = self.folder / "toolkit/lib64/libcublasLt.so.13"
        library.parent.mkdir(parents=True)
        library.touch()
        done = self.run_script("--only", "light.occupancy")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, rf"libraries found in: .*{re.escape(str(library.parent))}")

    def test_tools_that_are_missing_are_named(self):
        (self.folder / "tools/ncu").unlink()
        if shutil.which("ncu"):
            self.skipTest("there is an ncu here")
        self.assertIn("there is no ncu here", self.run_script("--only", "ncu").stdout)


if __name__ == "__main__":
    unittest.main()
