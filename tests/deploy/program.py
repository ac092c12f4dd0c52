# Runs the program `tributary` as a user does: alone, on a terminal, under mpirun; finds its ranks.
import os
import pathlib
import pty
import random
import re
import select
import signal
import socket
import subprocess
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TRIBUTARY_PROGRAM", "tributary")
MPIRUN = ROOT / "deploy" / "mpirun.sh"
TINY = ROOT / "tests" / "data" / "tiny.safetensors"

# Nothing here takes more than seconds; sanitizers and a busy machine are slower.
LIMIT_S = 120

# A replay of milliseconds whose sequences lie on several workers.
SMALL = ["replay", "--requests", "6", "--length-scale", "0.02", "--leaf-tokens", "64",
         "--heads", "4", "--kv-gib", "0.05"]
# One that goes on for minutes, until something ends it.
ENDLESS = ["replay", "--requests", "640", "--leaf-tokens", "256", "--kv-gib", "0.25",
           "--length-scale", "0.1", "--layers", "8", "--canary-rate", "0"]


def catches(pid, number):
    """Whether a process has a handler of its own for a signal."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)[1], 16)
    return caught >> (number - 1) & 1


def free_ports(count):
    """Ports of the loopback device below those that the system gives to whoever asks for any: until
    they are bound, or between two programs that listen there, nobody else gets them."""
    ports = []
    for port in random.sample(range(10000, 20000), 10000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # somebody listens there
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError("no port is free")


class Result:
    def __init__(self, status, stdout, stderr):
        # AddressSanitizer warns about a failed allocation, which may be what a test is about.
        stderr = re.sub(r"^==\d+==WARNING: AddressSanitizer failed to allocate .*\n", "", stderr,
                        flags=re.MULTILINE)
        # Open MPI 5 about a rank that ended while it was being started.
        stderr = re.sub(r"^\[\S+:\d+\] PMIX ERROR: .*\n", "", stderr, flags=re.MULTILINE)
        # Of a service or a worker that was held up for 2 s, and of a control plane that was for a
        # quarter of a second: any is on some machine.
        for held_up in (r"tributary: no answer from \S+ yet; waiting",
                        r"tributary: worker .*; calls wait for it until their deadlines",
                        r"\S+Z WARNING held up for \d+ ms: .*"):
            stderr = re.sub(rf"^{held_up}\n", "", stderr, flags=re.MULTILINE)
        self.status, self.stdout, self.stderr = status, stdout, stderr

    def own_lines(self):
        """What the program, and not mpirun, wrote to stderr, without the progress of a run that
        takes longer than 10 s: any run does on some machine."""
        return [line for line in self.stderr.splitlines()
                if re.match(r"tributary: (?!\d+% in )", line)]

    def figure(self, name):
        """The rest of the line of a report that begins with `name`."""
        return re.search(rf"^{re.escape(name)} +(.*)$", self.stdout, re.MULTILINE)[1]

    def __str__(self):
        return f"status {self.status}\nstdout: {self.stdout}\nstderr: {self.stderr}"


class Process:
    """The running program, in a process group of its own that ends with the block."""

    def __init__(self, arguments, ranks=0, mpirun=(), output=subprocess.PIPE):
        """`output`: a file for stdout and stderr, if they are more than a pipe holds."""
        launcher = [str(MPIRUN), "-np", str(ranks), *mpirun] if ranks else []
        self.mark = f"TRIBUTARY_TEST_MARK={uuid.uuid4()}"  # by which its ranks are found
        name, value = self.mark.split("=")
        self.popen = subprocess.Popen(
            [*launcher, PROGRAM, *map(str, arguments)], stdout=output,
            stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, name: value})

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for pid in [self.popen.pid, *self.rank_pids().values()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.popen.wait()
        for stream in (self.popen.stdout, self.popen.stderr):
            if stream:
                stream.close()

    def wait(self, limit_s=LIMIT_S):
        stdout, stderr = self.popen.communicate(timeout=limit_s)
        return Result(self.popen.returncode, stdout.decode(), stderr.decode())

    def rank_pids(self):
        """Of the ranks that live: rank -> process id."""
        pids = {}
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                environment = path.read_bytes().decode(errors="replace").split("\0")
            except OSError:  # it ended meanwhile, or is another user's
                continue
            if self.mark in environment:
                for variable in environment:
                    if variable.startswith("OMPI_COMM_WORLD_RANK="):
                        pids[int(variable.partition("=")[2])] = int(path.parent.name)
        return pids

    def wait_until(self, condition, what):
        end = time.monotonic() + LIMIT_S
        while not condition():
            if self.popen.poll() is not None:
                raise AssertionError(f"ended before {what}: {self.wait()}")
            if time.monotonic() > end:
                raise AssertionError(f"not in {LIMIT_S} s: {what}")
            time.sleep(0.02)


def run(*arguments, ranks=0):
    with Process(arguments, ranks) as process:
        return process.wait()


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_on_terminal(*arguments, ranks=0):
    """The exit status, and what appeared on the terminal that is its stderr."""
    launcher = [str(MPIRUN), "-np", str(ranks)] if ranks else []
    ours, theirs = pty.openpty()
    with subprocess.Popen([*launcher, PROGRAM, *map(str, arguments)], stderr=theirs,
                          stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = b""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if select.select([ours], [], [], 1)[0]:
                try:
                    part = os.read(ours, 4096)
                except OSError:  # the other side is closed
                    break
                if not part:
                    break
                shown += part
        else:
            process.kill()
        os.close(ours)
        return process.wait(), shown.decode(errors="replace")
