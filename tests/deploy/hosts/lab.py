# Hosts on one machine, for tests: network namespaces on a switch, each with its own host name,
# shared memory and addresses, so that programs believe they are on separate machines.
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "service")]
from program import LIMIT_S, MPIRUN, PROGRAM  # noqa: E402
from tier import wait_until  # noqa: E402

NETWORK = "10.77.0"     # the network that everything here must use
MANAGEMENT = "10.78.0"  # a second network on every host, which nothing may use
# Holds a host's namespaces until its standard input ends, as it does when the test dies; then ends
# whatever still runs there.
HOLD = r"""
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
# What is cut off is noticed in seconds, not in 15 minutes: as deploy/recipes/README.md tells operators, but
# for one try less.
echo 4 > /proc/sys/net/ipv4/tcp_retries2
echo ready
read -r _
for process in /proc/[0-9]*; do
  [[ $process/ns/net -ef /proc/self/ns/net && ${process#/proc/} != "$$" ]] &&
    kill -KILL "${process#/proc/}"
done 2>/dev/null
exit 0
"""

# Whether a host can be reached: a port where nobody listens refuses the connection.
REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 1), timeout=1)
except ConnectionRefusedError:
    sys.exit(0)
except OSError:
    sys.exit(1)
"""


def why_not():
    """Why hosts cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "ss", "nsenter", "unshare", "mpirun"):
        if not shutil.which(tool, path=os.environ["PATH"] + ":/sbin"):
            return f"needs the program {tool}"
    trial = ("mount -t tmpfs tmpfs /dev/shm && ip link add br0 type bridge && "
             "ip link add eth0 type veth peer name eth1 && ip tuntap add tap0 mode tap")
    tried = subprocess.run(["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-c", trial],
                           capture_output=True, text=True, timeout=LIMIT_S)
    return None if tried.returncode == 0 else f"namespaces: {tried.stderr.strip()}"


# Which of ADDRESS:PORT... accept a connection; those that do not answer have two seconds in all.
KNOCK = """
import select, socket, sys
waiting = {}
poll = select.poll()
for target in sys.argv[1:]:
    address, _, port = target.rpartition(":")
    tried = socket.socket()
    tried.setblocking(False)
    tried.connect_ex((address, int(port)))
    waiting[tried.fileno()] = (tried, target)
    poll.register(tried, select.POLLOUT)
while waiting:
    ready = poll.poll(2000)
    if not ready:
        break
    for number, _ in ready:
        tried, target = waiting.pop(number)
        poll.unregister(number)
        if tried.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
            print(target)
"""


class Program:
    """A process on a host, with its output in a file."""

    def __init__(self, host, arguments, environment):
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")
        self.popen = subprocess.Popen(
            host.enter(arguments), stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
            start_new_session=True, env={**os.environ, **environment})

    def output(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def alive(self):
        return self.popen.poll() is None

    def wait(self, limit_s=LIMIT_S):
        return self.popen.wait(limit_s)

    def kill(self):
        """nsenter has become the program: it is our child."""
        self.popen.kill()
        self.popen.wait()

    def figure(self, name):
        return re.search(rf"^{re.escape(name)} +(.*)$", self.output(), re.MULTILINE)[1]


class Host:
    def __init__(self, name, number):
        self.name, self.number = name, number
        self.address = f"{NETWORK}.{number}"
        self.holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--ipc", "--mount", "bash", "-c", HOLD, "hold", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.pid = self.holder.pid  # unshare without --fork becomes the command
        if self.holder.stdout.readline() != "ready\n":
            raise AssertionError(f"host {name} did not start")

    def enter(self, arguments):
        return ["nsenter", f"--target={self.pid}", "--net", "--uts", "--ipc", "--mount",
                *map(str, arguments)]

    def run(self, *arguments):
        done = subprocess.run(self.enter(arguments), capture_output=True, text=True,
                              timeout=LIMIT_S)
        if done.returncode != 0:
            raise AssertionError(f"{self.name}: {arguments}: {done.stderr}")
        return done.stdout

    def reaches(self, other):
        return subprocess.run(self.enter([sys.executable, "-c", REACH, other.address]),
                              timeout=LIMIT_S, check=False).returncode == 0

    def knock(self, targets):
        """Those of `targets`, "ADDRESS:PORT", where a connection is accepted."""
        return set(self.run(sys.executable, "-c", KNOCK, *targets).split())

    def listening(self):
        """(address, port, process name) of everything that listens here."""
        for line in self.run("ss", "-Hltnp").splitlines():
            fields = line.split()
            address, _, port = fields[3].rpartition(":")
            program = re.search(r'\(\("([^"]+)"', line)
            yield address.partition("%")[0], int(port), program[1] if program else "?"

    def close(self):
        self.holder.stdin.close()
        self.holder.wait(LIMIT_S)
        self.holder.stdout.close()


class Lab:
    """`hosts`: their names; the first has address 10.77.0.1. `slow`: the delay in milliseconds, and
    the share of lost frames, of the cables of some."""

    def __init__(self, hosts, slow=None):
        self.programs, self.cables, self.hosts = [], [], {}
        self.switch = Host("switch", 0)
        try:
            for bridge in ("br0", "br1"):
                self.switch.run("ip", "link", "add", bridge, "type", "bridge")
                self.switch.run("ip", "link", "set", bridge, "up")
            for number, name in enumerate(hosts, 1):
                self.hosts[name] = host = Host(name, number)
                self.plug(host, "eth0", "br0", f"{NETWORK}.{number}/24", (slow or {}).get(name))
                self.plug(host, "eth1", "br1", f"{MANAGEMENT}.{number}/24", None)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def __getitem__(self, name):
        return self.hosts[name]

    def plug(self, host, device, bridge, address, slow):
        port = f"{host.name}-{device}"
        if slow is None:
            self.switch.run("ip", "link", "add", port, "type", "veth", "peer", "name", device,
                            "netns", host.pid)
        else:
            delay_ms, loss = slow
            cable = subprocess.Popen(
                [sys.executable, HERE / "cable.py", f"{host.pid}:{device}",
                 f"{self.switch.pid}:{port}", str(delay_ms), str(loss)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
            self.cables.append(cable)
            if cable.stdout.readline() != "ready\n":
                raise AssertionError(f"the cable of {host.name} did not start")
        self.switch.run("ip", "link", "set", port, "master", bridge, "up")
        host.run("ip", "address", "add", address, "dev", device)
        host.run("ip", "link", "set", device, "up")

    def cut(self, name):
        self.switch.run("ip", "link", "set", f"{name}-eth0", "down")

    def heal(self, *names):
        """Returns when all hosts reach each other again: after a failed request for a host's
        hardware address it takes a second or more until the next one. The result is when the cables
        were whole."""
        for name in names:
            self.switch.run("ip", "link", "set", f"{name}-eth0", "up")
        whole = time.monotonic()
        for healed in map(self.hosts.get, names):
            for other in self.hosts.values():
                if other is not healed:
                    wait_until(lambda: other.reaches(healed) and healed.reaches(other),
                               f"{other.name} and {healed.name} reach each other")
        return whole

    def start(self, name, *arguments, environment=None):
        program = Program(self[name], arguments, environment or {})
        self.programs.append(program)
        return program

    def start_tributary(self, name, *arguments):
        """Starts a client, whose side of the data plane must be told its device, too."""
        return self.start(name, PROGRAM, *arguments, environment={"UCX_NET_DEVICES": "eth0"})

    def mpirun(self, names, ranks_each, *arguments):
        """Runs mpirun on the first of `names`, with ranks on all of them."""
        known = " ".join(f"{host.address}={host.pid}" for host in self.hosts.values())
        # Open MPI 5 does not recognise its own host by an address.
        addresses = [names[0], *(self[name].address for name in names[1:])]
        hosts = ",".join(f"{address}:{ranks_each}" for address in addresses)
        return self.start(
            names[0], MPIRUN, "-np", len(names) * ranks_each, "--host", hosts,
            "--bind-to", "none",  # all hosts' cores are the same here
            "--mca", "plm_rsh_agent", HERE / "agent.sh", "--mca", "orte_keep_fqdn_hostnames", "1",
            "--mca", "oob_tcp_if_include", f"{NETWORK}.0/24",
            "--mca", "btl_tcp_if_include", f"{NETWORK}.0/24",
            "--mca", "oob_tcp_keepalive_time", "3", "--mca", "oob_tcp_keepalive_intvl", "1",
            "--mca", "oob_tcp_keepalive_probes", "3",
            *(argument for family in ("v4", "v6")
              for argument in ("--mca", f"btl_tcp_port_min_{family}", MPI_PORTS.start,
                               "--mca", f"btl_tcp_port_range_{family}", len(MPI_PORTS))),
            PROGRAM, *arguments, environment={"TRIBUTARY_TEST_HOSTS": known})

    def close(self):
        for host in [*self.hosts.values(), self.switch]:
            host.close()
        for cable in self.cables:
            cable.stdin.close()
            cable.wait(LIMIT_S)
            cable.stdout.close()
        for program in self.programs:
            program.popen.wait(LIMIT_S)
            program.log.close()


# Open MPI listens on every device, whatever it is told to use; at least on known ports.
MPI_PORTS = range(27000, 27100)
