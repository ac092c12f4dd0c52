#!/usr/bin/env python3
# deploy/mpirun.sh and deploy/common.sh beside a program `mpirun` that only records its arguments.
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from program import wait_until  # noqa: E402

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
CPUS = int(subprocess.run(["nproc"], env={"PATH": os.environ["PATH"]}, capture_output=True,
                          check=True).stdout)
# Set by Slurm sites, enroot and torchrun, for programs of OpenMP.
OPENMP = [{}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": str(4 * CPUS)},
          {"OMP_NUM_THREADS": "3,2"}, {"OMP_THREAD_LIMIT": "1"}]


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "mpirun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (self.folder / "mpirun").chmod(0o755)

    def run_with(self, environment, *command):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("OMP_", "CMAKE_", "CTEST_", "SLURM_", "PBS_", "LSB_"))}
        return subprocess.run(command, capture_output=True, text=True, timeout=30,
                              env={**kept, "PATH": f"{self.folder}:{os.environ['PATH']}",
                                   **environment})

    def mpirun(self, *arguments, **environment):
        """The arguments that mpirun got."""
        done = self.run_with(environment, DEPLOY / "mpirun.sh", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()


class Cpus(Scripts):
    """OpenMP's variables say nothing about how many CPUs there are."""

    def test_ranks_share_those_of_the_affinity_mask(self):
        for environment in OPENMP:
            with self.subTest(environment):
                self.assertIn(f"slot:PE={CPUS}", self.mpirun("-np", "1", "true", **environment))
                self.assertIn("slot:PE=1", self.mpirun("-np", str(CPUS), "true", **environment))
                self.assertIn("--oversubscribe",
                              self.mpirun("-np", str(CPUS + 1), "true", **environment))

    def test_as_many_compile(self):
        for environment in OPENMP:
            done = self.run_with(environment, "bash", "-c", 'source "$0" && echo '
                                 '"$CMAKE_BUILD_PARALLEL_LEVEL $CTEST_PARALLEL_LEVEL"',
                                 DEPLOY / "common.sh")
            self.assertEqual(done.stdout, f"{CPUS} {CPUS}\n", (environment, done.stderr))


class Checkout(Scripts):
    """A checkout of these scripts alone, beside stand-ins for what they call."""

    def setUp(self):
        super().setUp()
        self.checkout = self.folder / "checkout"
        deploy = self.checkout / "deploy"
        (deploy / "python").mkdir(parents=True)
        (deploy / "service" / "client").mkdir(parents=True)
        for name in ("common.sh", "demo.sh", "quickstart.sh", "test.sh"):
            shutil.copy(DEPLOY / name, deploy / name)
        self.stand_in("checkout/deploy/setup.sh", "")
        self.stand_in("cmake", 'echo "cmake $*" >>"$NOTES"; echo "$CMAKE_SAYS"; '
                      'case $1 in --build) exit 9 ;; esac')

    def stand_in(self, name, text):
        (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / name).chmod(0o755)

    def run_script(self, *command, **environment):
        """What it did, and the calls of programs that it made."""
        notes = self.folder / "notes"
        done = self.run_with({"NOTES": str(notes), **environment},
                             self.checkout / "deploy" / command[0], *command[1:])
        return done, notes.read_text().splitlines()

    def test_the_quick_start_says_that_it_compiles_cuda(self):
        done, calls = self.run_script("quickstart.sh", CMAKE_SAYS="-- CUDA: ON, nvcc 13.0")
        self.assertIn("compiles the CUDA backend as well, with nvcc 13.0\n", done.stdout)
        self.assertNotIn("TRIBUTARY_CUDA", calls[0])
        self.assertEqual(calls[1], "cmake --build --preset release --target tributary")
        done, calls = self.run_script("quickstart.sh", "--cpu", CMAKE_SAYS="-- CUDA: OFF, as asked")
        self.assertNotIn("compiles the CUDA", done.stdout)
        self.assertIn("-DTRIBUTARY_CUDA=OFF", calls[2])

    def test_a_stage_that_ends_ends_what_it_started(self):
        """In a session of its own, as the tiers and engines of the tests."""
        self.stand_in("cmake", 'setsid sleep 100 >/dev/null 2>&1 & echo "$!" >>"$NOTES"; exit 9')
        done, notes = self.run_script("test.sh", "--only", "release")
        self.assertIn("release  FAILED", done.stdout)
        status = pathlib.Path(f"/proc/{notes[0]}/status")
        with contextlib.suppress(FileNotFoundError):  # it is dying, or nobody has asked for its status
            wait_until(lambda: "State:\tZ" in status.read_text(), f"it ends: {done}")

    def test_the_demonstration_without_a_package_index_ends_before_it_builds(self):
        self.stand_in("pip", 'echo "pip $*" >>"$NOTES"; echo "no index" >&2; exit 1')
        self.stand_in("python3", 'mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; '
                      f'cp "{self.folder}/pip" "$3/bin/pip"')
        done, calls = self.run_script("demo.sh")
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("no index\n", done.stderr)
        self.assertIn("(the first time needs PyPI)", done.stderr)
        self.assertEqual(len(calls), 1, calls)
        self.assertRegex(calls[0], "^pip download .*--retries 0 --timeout 10 ")


if __name__ == "__main__":
    unittest.main()
