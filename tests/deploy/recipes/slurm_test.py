#!/usr/bin/env python3
# deploy/recipes/slurm/pool.sbatch on a real Slurm: munge, a controller and two nodes on this machine.
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "service"))
from tier import Tier, wait_until  # noqa: E402
from program import LIMIT_S, PROGRAM, ROOT, free_ports, run  # noqa: E402

RECIPE = ROOT / "deploy" / "recipes" / "slurm" / "pool.sbatch"
SHAPE = ["--leaf-tokens", "64", "--shape", "deepseek-v2-lite"]
WORKERS = ["--kv-gib", "0.05", *SHAPE, "--lease-ms", "60000"]
SMALL = ["--requests", "6", "--length-scale", "0.05"]
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue",
         "mpirun", "curl")

CONFIGURATION = """
ClusterName=tributary
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# Credentials that live as briefly as they may: a requeued job waits for the end of its old ones.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=n1 NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[1]} CPUs=2
NodeName=n2 NodeAddr=127.0.0.1 NodeHostname={host} Port={ports[2]} CPUs=2
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""


def why_not():
    if os.geteuid() != 0:
        return "needs root"
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=path)]
    return f"not installed: {', '.join(missing)}" if missing else None


class Slurm(contextlib.AbstractContextManager):
    """A cluster of two nodes. All its files are in one folder, and its daemons are our children."""

    def __init__(self):
        self.home = tempfile.TemporaryDirectory(prefix="slurm-")
        self.folder = pathlib.Path(self.home.name)
        self.daemons, self.logs = [], []
        os.chmod(self.folder, 0o755)  # munge wants its socket's folder to be reachable
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(CONFIGURATION.format(
            host=socket.gethostname(), folder=self.folder, ports=free_ports(3)))
        self.environment = {**os.environ, "SLURM_CONF": str(self.configuration),
                            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        try:
            self.start("munged", "--foreground", "--force", f"--key-file={key}",
                       *(f"--{what}-file={self.folder}/munge.{what}"
                         for what in ("pid", "log", "seed")),
                       f"--socket={self.folder}/munge.socket")
            wait_until(lambda: (self.folder / "munge.socket").exists(), "munge listens")
            self.start("slurmctld", "-D", "-f", self.configuration)
            for node in ("n1", "n2"):
                self.start("slurmd", "-D", "-N", node, "-f", self.configuration)
            wait_until(lambda: self.call("sinfo", "-h", "-o", "%D %t", check=False).strip()
                       == "2 idle", "both nodes are idle")
        except BaseException as error:
            print(self.log_text(), file=sys.stderr)
            self.__exit__()
            raise error

    def start(self, *command):
        log = open(self.folder / f"{command[0]}{len(self.logs)}.log", "w+")
        self.logs.append(log)
        self.daemons.append(subprocess.Popen(list(map(str, command)), env=self.environment,
                                             stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                             start_new_session=True))

    def call(self, *command, check=True, environment=None):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True,
                              timeout=LIMIT_S, cwd=self.folder,
                              env={**self.environment, **(environment or {})})
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: {done.stderr}")
        return done.stdout

    def state(self, job):
        text = self.call("scontrol", "-o", "show", "job", job, check=False)
        found = re.search(r"JobState=(\w+)", text)
        return found[1] if found else "GONE"

    def restarts(self, job):
        return int(re.search(r"Restarts=(\d+)", self.call("scontrol", "-o", "show", "job", job))[1])

    def job_log(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("tributary-*.log")))

    def log_text(self):
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in self.folder.glob("*.log"))

    def __exit__(self, *unused):
        if len(self.daemons) == 4:
            self.call("scancel", "--user=root", check=False)
            with contextlib.suppress(AssertionError):
                wait_until(lambda: not self.call("squeue", "-h", check=False).strip(),
                           "no job is left", 20)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()
        for log in self.logs:
            log.close()
        self.home.cleanup()


class SlurmPool(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if reason := why_not():
            print(f"\nNO SLURM, ITS RECIPE IS NOT TESTED: {reason}", file=sys.stderr)
            raise unittest.SkipTest(f"NO SLURM: {reason}")

    def test_serves_restarts_requeues_and_drains(self):
        alone = run("replay", *SMALL, *SHAPE).figure("digest")
        with Tier(pools=()) as tier, Slurm() as slurm:
            job = slurm.call(
                "sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", RECIPE, *WORKERS,
                environment={"TRIBUTARY_CONTROL": tier.url, "TRIBUTARY_DEVICE": "lo",
                             "TRIBUTARY_PROGRAM": shutil.which(PROGRAM) or PROGRAM,
                             "TRIBUTARY_POOL": "batch", "TRIBUTARY_DRAIN_S": "20"}).strip()

            def serves(what):
                try:
                    wait_until(lambda: tier.state("batch") == "serving", what)
                except AssertionError as error:
                    raise AssertionError(f"{error}\n{slurm.state(job)}\n{slurm.job_log()}\n"
                                         f"{slurm.log_text()}") from error
                client = run("replay", "--service", tier.url, *SMALL)
                self.assertEqual(client.status, 0, client)
                self.assertEqual(client.figure("digest"), alone)
            serves("the pool serves")
            self.assertEqual(len(tier.cluster()["pools"][0]["workers"]), 2)

            # A worker dies: the pool restarts within the same run of the job.
            victim = next(int(path.parent.name)
                          for path in pathlib.Path("/proc").glob("[0-9]*/environ")
                          if f"SLURM_JOB_ID={job}\0" in self.environment(path)
                          and "OMPI_COMM_WORLD_RANK=1\0" in self.environment(path))
            os.kill(victim, signal.SIGKILL)
            # It is back after seconds: who is held up does not see it lost.
            wait_until(lambda: tier.metric("tributary_pools_lost_total") == 1,
                       "the loss is noticed")
            serves("the pool is back after the loss of a worker")
            self.assertEqual(slurm.restarts(job), 0)

            # The time limit approaches: the pool drains, and the job starts again.
            held = tier.admit(100, 10)
            self.assertEqual(held.status, 201, held)
            slurm.call("scancel", "--batch", "--signal=USR1", job)
            wait_until(lambda: tier.state("batch") == "draining", "it drains")
            self.assertEqual(tier.admit(100, 10).status, 503)
            tier.request("DELETE", f"/v1/sequences/{held.json['sequence_id']}")
            wait_until(lambda: slurm.restarts(job) == 1 and slurm.state(job) == "RUNNING",
                       "the job starts again")
            serves("the pool is back after the requeue")

            # The operator ends it.
            slurm.call("scancel", "--batch", "--signal=TERM", job)
            wait_until(lambda: slurm.state(job) in ("COMPLETED", "GONE"), "the job ends")
            self.assertIn("sequences left: 0", slurm.job_log())

    @staticmethod
    def environment(path):
        try:
            return path.read_bytes().decode(errors="replace")
        except OSError:  # it ended meanwhile
            return ""


if __name__ == "__main__":
    unittest.main()
