# Runs the program `tributary` as a user does: alone, on a terminal, under mpirun; finds its ranks.
import contextlib
import os
import pathlib
import pty
import random
import re
import signal
import socket
import subprocess
import threading
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TRIBUTARY_PROGRAM", "tributary")
MPIRUN = ROOT / "deploy" / "mpirun.sh"
TINY = ROOT / "tests" / "data" / "tiny.safetensors"

# Ends a test that hangs, and judges nothing: everything here takes seconds, where the machine does no
# other work.
LIMIT_S = 300

# A replay of milliseconds whose sequences lie on several workers.
SMALL = ["replay", "--requests", "6", "--length-scale", "0.02", "--leaf-tokens", "64",
         "--heads", "4", "--kv-gib", "0.05"]
# One that goes on for minutes, until something ends it.
ENDLESS = ["replay", "--requests", "640", "--leaf-tokens", "256", "--kv-gib", "0.25",
           "--length-scale", "0.1", "--layers", "8", "--canary-rate", "0"]


def handling(pid, number):
    """What a process does with a signal: of "caught", "ignored" and "blocked"."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {word for word, field in (("caught", "Cgt"), ("ignored", "Ign"), ("blocked", "Blk"))
            if int(re.search(rf"^Sig{field}:\s*(\w+)", status, re.MULTILINE)[1], 16)
            >> (number - 1) & 1}


def catches(pid, number):
    """Whether a process has a handler of its own for a signal."""
    return "caught" in handling(pid, number)


def wait_until(condition, what, limit_s=LIMIT_S):
    """The first true value of `condition`."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not in {limit_s} s: {what}")
        time.sleep(0.02)
    return value


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
        # A terminal's progress, and its ends of lines.
        stderr = re.sub(r"\r(\[[# ]{20}\][^\r\n]*?)?\x1b\[K", "", stderr).replace("\r\n", "\n")
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


class Screen:
    """A terminal to write to, whose other end is read all the time."""

    def __init__(self):
        self._ours, self.theirs = pty.openpty()
        self._shown = b""
        self._reader = threading.Thread(target=self._read, daemon=True)

    def start(self):
        """When the process that writes has `theirs`."""
        os.close(self.theirs)
        self._reader.start()

    def shown(self):
        return self._shown.decode(errors="replace")

    def finish(self):
        """All that was shown, once nobody can write to it any more."""
        self._reader.join(LIMIT_S)
        return self.shown()

    def _read(self):
        with os.fdopen(self._ours, "rb", buffering=0) as screen, contextlib.suppress(OSError):
            while part := screen.read(4096):
                self._shown += part


class Process:
    """The running program, in a process group of its own that ends with the block."""

    def __init__(self, arguments, ranks=0, mpirun=(), output=subprocess.PIPE, screen=None,
                 before=()):
        """`output`: a file for stdout and stderr, if they are more than a pipe holds. `screen`: a
        terminal for stderr, on which a replay shows how far it is. `before`: a command that starts
        it."""
        launcher = [str(MPIRUN), "-np", str(ranks), *mpirun] if ranks else [*before]
        self.mark = f"TRIBUTARY_TEST_MARK={uuid.uuid4()}"  # by which its ranks are found
        name, value = self.mark.split("=")
        self.screen, self.output = screen, output
        self.popen = subprocess.Popen(
            [*launcher, PROGRAM, *map(str, arguments)], stdout=output,
            stderr=screen.theirs if screen else output, stdin=subprocess.DEVNULL,
            start_new_session=True, env={**os.environ, name: value})
        if screen:
            screen.start()

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
        if stdout is None:  # both went into a file
            return Result(self.popen.returncode, "", pathlib.Path(self.output.name).read_text())
        text = self.screen.finish() if self.screen else stderr.decode()
        return Result(self.popen.returncode, stdout.decode(), text)

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
        def holds():
            if condition():
                return True
            if self.popen.poll() is not None:
                raise AssertionError(f"ended before {what}: {self.wait()}")
            return False
        wait_until(holds, what)

    def tokens_decoded(self):
        """As its screen says."""
        return max((int(count) for count in
                    re.findall(r" (\d+) of \d+ tokens", self.screen.shown())), default=0)

    def wait_decoding(self):
        """Until the first tokens are on its screen."""
        self.wait_until(lambda: re.search(r" [1-9]\d* of \d+ tokens", self.screen.shown()),
                        "it decodes")


def run(*arguments, ranks=0):
    with Process(arguments, ranks) as process:
        return process.wait()


def run_on_terminal(*arguments, ranks=0):
    """The exit status, and what appeared on the terminal that is its stderr."""
    with Process(arguments, ranks, output=subprocess.DEVNULL, screen=Screen()) as process:
        status = process.popen.wait(LIMIT_S)
        return status, process.screen.finish()
