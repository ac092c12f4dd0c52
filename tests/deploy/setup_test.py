#!/usr/bin/env python3
# deploy/setup.sh on other systems than this machine's: programs that only record their arguments
# replace apt and dpkg.
import os
import pathlib
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "setup.sh"
DEBIAN_13 = "ID=debian\nVERSION_ID=13\n"
DEBIAN_12 = "ID=debian\nVERSION_ID=12\n"
UBUNTU = "ID=ubuntu\nVERSION_ID=24.04\n"
# Nothing is installed, apt knows every package, and nobody has to be root.
STAND_INS = {"dpkg-query": "", "apt-cache": "shift; for i; do echo '  Candidate: 1'; done",
             "apt-get": 'echo "$@" >> "$NOTES"', "sudo": 'case $1 in -n) ;; *) "$@" ;; esac'}


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.notes = self.folder / "notes"
        for name, text in STAND_INS.items():
            (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.folder / name).chmod(0o755)

    def set_up(self, system, *sections, **environment):
        """What was printed on standard error, and the packages that apt was told to install."""
        (self.folder / "os-release").write_text(system)
        self.notes.write_text("")
        done = subprocess.run(
            [SETUP, *sections], capture_output=True, text=True, timeout=30,
            stdin=subprocess.DEVNULL,
            env={"PATH": f"{self.folder}:{os.environ['PATH']}", "NOTES": str(self.notes),
                 "TRIBUTARY_OS_RELEASE": str(self.folder / "os-release"), **environment})
        calls = self.notes.read_text().splitlines()
        self.assertLessEqual(len(calls), 1)
        return done, {word for call in calls for word in call.split() if not word.startswith("-")}

    def test_names_are_those_of_the_system(self):
        done, packages = self.set_up(DEBIAN_13, "build", "test")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual({"g++", "libboost-dev", "libboost-context-dev", "clang"}, packages)
        self.assertFalse({"libboost1.81-dev", "clang-format-14"} & packages)
        done, packages = self.set_up(DEBIAN_12, "build", "test")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual({"g++", "libboost1.81-dev", "libboost-context1.81-dev", "clang",
                              "clang-format-14"}, packages)
        self.assertFalse({"libboost-dev", "libboost-context-dev"} & packages)

    def test_other_systems_are_refused_in_one_line(self):
        for system in (UBUNTU, "ID=debian\n", "ID=debian\nVERSION_ID=1\n", ""):
            done, packages = self.set_up(system)
            self.assertEqual((done.returncode, done.stdout, packages), (1, "", set()))
            self.assertEqual(len(done.stderr.splitlines()), 1)
            for word in ("debian13", "debian12", "TRIBUTARY_ANY_SYSTEM=1"):
                self.assertIn(word, done.stderr)

    def test_they_go_on_at_their_own_risk(self):
        done, packages = self.set_up(UBUNTU, TRIBUTARY_ANY_SYSTEM="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual({"g++", "libboost-dev", "openmpi-bin"}, packages)

    def test_what_is_missing_can_be_asked_for(self):
        done, packages = self.set_up(DEBIAN_13, "--missing", "build")
        self.assertEqual((done.returncode, packages), (0, set()), done.stderr)
        self.assertLessEqual({"g++", "libboost-dev"}, set(done.stdout.split()))


if __name__ == "__main__":
    unittest.main()
