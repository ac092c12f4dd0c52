#!/usr/bin/env python3
# deploy/mpirun.sh and deploy/common.sh beside a program `mpirun` that only records its arguments.
import os
import pathlib
import subprocess
import tempfile
import unittest

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


if __name__ == "__main__":
    unittest.main()
