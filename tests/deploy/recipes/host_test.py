#!/usr/bin/env python3
# Recipes for one machine: the systemd units, and the container's files.
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import PROGRAM, ROOT, run  # noqa: E402

SYSTEMD = ROOT / "deploy" / "recipes" / "systemd"
CONTAINER = ROOT / "deploy" / "recipes" / "container"
# Score of systemd-analyze security: 0 is nothing but arithmetic, 10 is root. Below 2 is "OK".
MAX_EXPOSURE = 20  # in tenths


def systemd_analyze(*arguments):
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True,
                          timeout=60)


class Systemd(unittest.TestCase):
    def test_the_unit_is_in_order(self):
        if not shutil.which("systemd-analyze"):
            print("\nNO SYSTEMD, ITS UNIT IS NOT CHECKED", file=sys.stderr)
            self.skipTest("NO SYSTEMD")
        text = (SYSTEMD / "tributary-control.service").read_text()
        program = shutil.which(PROGRAM) or PROGRAM
        with tempfile.TemporaryDirectory() as folder:
            unit = pathlib.Path(folder, "tributary-control.service")
            unit.write_text(text.replace("/usr/bin/tributary", str(program)))
            done = systemd_analyze("verify", "--man=no", unit)
            # It also checks all units that ours needs.
            ours = [line for line in done.stderr.splitlines() if "tributary" in line]
            self.assertEqual(ours, [])
            done = systemd_analyze("security", "--offline=yes", f"--threshold={MAX_EXPOSURE}",
                                   unit)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            print(done.stdout.strip().splitlines()[-1], file=sys.stderr)

    def test_a_pools_units_are_in_order_too(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("NO SYSTEMD")
        program = shutil.which(PROGRAM) or PROGRAM
        for name, instance in (("tributary-pool.service",) * 2,
                               ("tributary-worker@.service", "tributary-worker@1.service")):
            text = (SYSTEMD / name).read_text()
            with tempfile.TemporaryDirectory() as folder:
                unit = pathlib.Path(folder, name)
                unit.write_text(text.replace("/usr/bin/tributary", str(program))
                                .replace("/usr/bin/mpirun", "/bin/true"))
                done = systemd_analyze("verify", "--man=no", unit.with_name(instance))
                ours = [line for line in done.stderr.splitlines() if "tributary" in line]
                self.assertEqual([line for line in ours if "tributary-control" not in line], [])

    def test_a_workers_command_line_is_the_programs(self):
        text = (SYSTEMD / "tributary-worker@.service").read_text().replace("\\\n", "")
        environment = dict(word.split("=") for word in
                           re.search(r"^Environment=(.*)$", text, re.MULTILINE)[1].split())
        words = re.search(r"^ExecStart=/usr/bin/tributary (.*)$", text, re.MULTILINE)[1].split()
        with tempfile.NamedTemporaryFile(mode="w", suffix=".secret") as secret:
            secret.write("0123456789abcdef")
            secret.flush()
            put = {"/etc/tributary/tributary.toml": str(SYSTEMD / "tributary.toml"),
                   "%d/token": "/nowhere/token", "%d/pool-secret": secret.name, "%i": "4",
                   "${SLOTS}": environment["SLOTS"], "${LEADER}": environment["LEADER"]}
            result = run(*[put.get(word, word) for word in words])
            # All is well but the slot.
            self.assertNotEqual(result.status, 0)
            self.assertIn("rank is 4 of 4", result.stderr)

    def test_no_unit_is_reached_from_elsewhere_by_default(self):
        for unit in SYSTEMD.glob("*.service"):
            lines = unit.read_text().splitlines()
            self.assertEqual([line for line in lines if line.startswith("IPAddress")],
                             ["IPAddressDeny=any", "IPAddressAllow=localhost"], unit.name)

    def test_its_command_line_and_configuration_are_the_programs(self):
        text = (SYSTEMD / "tributary-control.service").read_text()

        def words(key):
            return re.search(rf"^{key}=/usr/bin/tributary (.*)$", text, re.MULTILINE)[1].split()
        check, start = words("ExecStartPre"), words("ExecStart")
        config = str(SYSTEMD / "tributary.toml")
        substitutes = {"/etc/tributary/tributary.toml": config, "%d/token": "/nowhere/token"}
        result = run(*[substitutes.get(word, word) for word in check])
        self.assertEqual(result.status, 0, result)
        # All is well but the token's file.
        result = run(*[substitutes.get(word, word) for word in start])
        self.assertNotEqual(result.status, 0)
        self.assertIn("/nowhere/token", result.stderr)


class Container(unittest.TestCase):
    def test_packages_of_the_program_are_found(self):
        program = shutil.which(PROGRAM) or PROGRAM
        done = subprocess.run([CONTAINER / "runtime_packages.sh", program], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        packages = done.stdout.split()
        self.assertEqual(packages, sorted(set(packages)))
        self.assertIn("libc6", packages)
        self.assertFalse([name for name in packages if name.endswith("-dev")])

    def test_dockerfile_is_as_it_should_be(self):
        text = (CONTAINER / "Dockerfile").read_text()
        stages = re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
        self.assertEqual(stages[-2:], ["cpu", "cuda"])
        for stage in ("cpu", "cuda"):
            lines = re.split(rf"^FROM \S+ AS {stage}$", text, flags=re.MULTILINE)[1]
            lines = lines.split("\nFROM ")[0]
            user = re.search(r"^USER (\d+)$", lines, re.MULTILINE)  # a number: kubelets ask for it
            self.assertNotEqual(int(user[1]), 0)
            self.assertIn(f"user_id={user[1]} ", (CONTAINER / "prepare_image.sh").read_text())
        for source in re.findall(r"/src/(deploy/\S+)", text) + ["deploy/packages.txt"]:
            self.assertTrue((ROOT / source).exists(), source)
        if not shutil.which("hadolint"):
            print("\nNO HADOLINT, THE DOCKERFILE IS NOT LINTED", file=sys.stderr)
            return
        done = subprocess.run(["hadolint", CONTAINER / "Dockerfile"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
