# A decode tier of real processes: a control plane and pools, under mpirun or worker by worker, as an
# operator runs them.
import contextlib
import http.client
import json
import pathlib
import re
import signal
import sys
import tempfile
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from program import LIMIT_S, Process, free_ports, wait_until  # noqa: E402

# For tests that wait for the end of leases: of clients that live too, which must not be held up for
# as long.
LEASE_MS = 10_000
# Silence is for machines that vanish: no worker here is lost by it, however long it is held up.
WORKER_FLAGS = ["--kv-gib", "0.05", "--leaf-tokens", "64", "--shape", "deepseek-v2-lite",
                "--canary-interval-ms", "50", "--failure-timeout-ms", "20000"]
# No pool here is lost by its heartbeats alone.
CONTROL_FLAGS = ["--failure-timeout-ms", "20000"]


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]

    def __str__(self):
        return f"{self.status}: {self.body}"


class Service:
    """One long-running process whose output goes to a file, and its stderr to a screen if it has one."""

    def __init__(self, arguments, ranks=0, mpirun=(), screen=None):
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")
        self.process = Process(arguments, ranks, mpirun=mpirun, output=self.log, screen=screen)

    def output(self):
        shown = self.process.screen.shown() if self.process.screen else ""
        return pathlib.Path(self.log.name).read_text(errors="replace") + shown

    def alive(self):
        return self.process.popen.poll() is None

    def signal(self, number):
        self.process.popen.send_signal(number)

    def wait(self, limit_s=LIMIT_S):
        status = self.process.popen.wait(limit_s)
        if self.process.screen:
            self.process.screen.finish()
        return status

    def pids(self):
        return self.process.rank_pids()

    def close(self):
        self.process.__exit__()
        self.log.close()


class Workers:
    """A pool without mpirun: a Service for each worker."""

    def __init__(self, arguments, count):
        self.secret = tempfile.NamedTemporaryFile(mode="w", suffix=".secret")
        self.secret.write("the-workers-of-a-pool-in-a-test")
        self.secret.flush()
        self.arguments = [*arguments, "--leader", f"127.0.0.1:{free_ports(1)[0]}"]
        self.slots = count
        # Worker 0 comes last: the others wait for it.
        self.workers = [self.start(slot) for slot in reversed(range(count))][::-1]

    def start(self, slot, slots=None, secret=None):
        """One more process for a slot."""
        return Service([*self.arguments, "--slot", slot, "--slots", slots or self.slots,
                        "--pool-secret-file", secret or self.secret.name])

    def restart(self, slot):
        """Another process in the place of one that has ended."""
        self.workers[slot].wait()
        self.workers[slot].close()
        self.workers[slot] = self.start(slot)

    def alive(self):
        """Whether it may serve: it ends with worker 0."""
        return self.workers[0].alive()

    def output(self):
        return "".join(f"worker {slot}: {worker.output()}"
                       for slot, worker in enumerate(self.workers))

    def pids(self):
        return [worker.process.popen.pid for worker in self.workers]

    def close(self):
        for worker in self.workers:
            worker.close()
        self.secret.close()


def defaults_beside(defaults, given):
    """Those of `defaults` (flag, value, ...) that `given` does not set."""
    return [word for flag in zip(defaults[::2], defaults[1::2]) if flag[0] not in given
            for word in flag]


class Tier(contextlib.AbstractContextManager):
    """`pools`: the number of workers of each. `mpirun`: its further options, or None for workers that
    are started one by one."""

    def __init__(self, pools=(2,), worker_flags=(), control_flags=(), token=None,
                 lease_ms=15_000, mpirun=()):
        self.worker_flags = ["--lease-ms", lease_ms, *worker_flags]
        self.control_flags = [*defaults_beside(CONTROL_FLAGS, control_flags), *control_flags]
        self.token = token
        self.mpirun = mpirun
        self.closed = []
        self.start_control(f"127.0.0.1:{free_ports(1)[0]}")
        self.pools = {}
        try:
            for number, workers in enumerate(pools):
                self.start_pool(f"pool{number}", workers)
            self.wait_ready(len(pools))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *unused):
        for service in [*self.pools.values(), self.control, *self.closed]:
            service.close()

    def start_control(self, listen):
        self.control = Service(["control", "--listen", listen, *self.control_flags])

        def address():
            if not self.control.alive():
                raise AssertionError(f"control ended: {self.control.output()}")
            return re.search(r"https?://(\S+:\d+)", self.control.output())
        self.url = wait_until(address, "the control plane listens")[0].rstrip("/")
        self.address = urllib.parse.urlsplit(self.url).netloc

    def kill_control(self):
        self.control.signal(signal.SIGKILL)
        self.control.wait()
        self.closed.append(self.control)

    def start_pool(self, name, workers):
        if name in self.pools:
            self.closed.append(self.pools[name])
        arguments = ["worker", "--control", self.url, "--name", name,
                     *defaults_beside(WORKER_FLAGS, self.worker_flags), *self.worker_flags]
        if self.mpirun is None:
            self.pools[name] = Workers(arguments, workers)
        else:
            self.pools[name] = Service(arguments, ranks=workers, mpirun=self.mpirun)

    def wait_ready(self, pools):
        def ready():
            for name, pool in self.pools.items():
                if not pool.alive():
                    raise AssertionError(f"{name} ended: {pool.output()}")
            return self.states().count("serving") == pools
        wait_until(ready, f"{pools} pools serve: {self.control.output()}")

    # HTTP.

    def request(self, method, path, body=None, headers=None, token=True):
        connection = http.client.HTTPConnection(self.address, timeout=LIMIT_S)
        try:
            headers = dict(headers or {})
            if self.token and token:
                headers["Authorization"] = f"Bearer {self.token}"
            if isinstance(body, dict):
                body = json.dumps(body)
                headers.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()

    def get(self, path):
        return self.request("GET", path)

    def admit(self, prompt_tokens, max_new_tokens, key=None, **more):
        return self.request("POST", "/v1/sequences",
                            {"prompt_tokens": prompt_tokens, "max_new_tokens": max_new_tokens,
                             **more}, {"Idempotency-Key": key, "Idempotency-Secret": "secret"} if key else None)

    def cluster(self):
        answer = self.get("/v1/cluster")
        assert answer.status == 200, answer
        return answer.json

    def states(self):
        return [pool["state"] for pool in self.cluster()["pools"]]

    def state(self, name):
        return {pool["name"]: pool["state"] for pool in self.cluster()["pools"]}.get(name)

    def metric(self, name, **labels):
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.get("/metrics").body.splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name:
                found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                if all(found.get(key) == value for key, value in labels.items()):
                    total += float(match[3])
        return total

    def busy_pages(self):
        return self.metric("tributary_pages_used") + self.metric("tributary_pages_reserved")

    def wait_all_free(self):
        wait_until(lambda: self.busy_pages() == 0, "every page is free")
