# The rules of the code's structure, as functions from a tree of files to a list of findings.
# Used by structure_test.py, which applies them to this repository and to planted violations.
import collections
import pathlib
import posixpath
import re

FOLDERS = ("core", "kernels", "comm", "deploy", "tests", "bench")
HEADERS = (".h", ".cuh")
UNITS = (".cc", ".cu")
SCRIPTS = (".py", ".sh")
MAX_LINES = 600
MAX_PUBLIC = 20  # functions of a class; one that needs more holds two ideas

# Exceptions to the rules about classes and names. A line that is not needed is a finding.
EXCEPTIONS = {
    # More than MAX_PUBLIC functions.
    "functions of CublasLt",  # one member for each function of the library
    # Members in several sources.
    "sources of Connections",
    # Classes of one name.
    "class Buffer",
    "class Case",
    "class Control",
    "class Feed",
    "class Introduction",
    "class Launch",
    "class Leaf",
    "class Machine",
    "class Progress",
    "class Projection",
    "class RawClient",
    "class Rows",
    "class Sequence",
    "class SimulatedPool",
    "class SimulatedPoolConfig",
    "class Thread",
    "class Unit",
    "class Work",
    "class Worker",
    # Headers of one name, tests aside.
    "header client.h",
}

# The files that may read the processes' clock: edges (sockets, threads that sleep, main loops, meters). Who
# decides takes a Time or a Clock. steady_clock() hands the clock in; Deadline::after(duration), expired() and
# seconds_since() hide a read.
CLOCK_READERS = {
    "core/base": "deadline.h look_for.h",
    "core/interface": "clock.cc clock.h communicator.cc",
    "core/pool": "pool_worker.h",
    "core/round": "phases.h round.cc",
    "kernels/cuda/base": "support.cc",
    "kernels/cuda": "cuda_backend.cc cuda_projection.cc device_peak.cc row_copies.h staging.cc",
    "comm/http": "connector.cc event_loop.cc http_client.cc session_timer.h websocket_connection.cc",
    "comm/local": "local_transport.cc thread_group.cc",
    "comm/mpi": "mpi_environment.cc mpi_support.cc",
    "comm/nccl": "nccl_communicator.cc",
    "comm/tcp": "shared_loop.cc tcp_connection.cc",
    "comm/ucx": "ucx_connections.cc ucx_messages.cc ucx_transport.cc",
    "deploy/app/bench": "bench.cc collective_series.cc machine_peak.cc "
        "prepared_client.h step_case.cc timing.h unit_costs.cc",
    "deploy/app": "main.cc",
    "deploy/app/meet": "meet_service.cc",
    "deploy/app/prefill": "prefill.cc",
    "deploy/app/replay": "progress.cc progress.h replay.cc replay_clients.cc",
    "deploy/app/top": "tier_sample.h top.cc",
    "deploy/app/up": "child_process.cc up.cc",
    "deploy/app/verify": "verify.cc",
    "deploy/local": "hosted_pool.cc local_pool.cc",
    "deploy/predict/simulate": "tier_simulation.cc",
    "deploy/python": "sequence.cc tier.cc",
    "deploy/runtime": "cuda_pool.cc run_workers.cc",
    "deploy/service/client": "scoped_sequences.cc tier_api.cc tier_client.cc",
    "deploy/service/control": "control.cc control_log.cc",
    "deploy/service/worker": "serve_pool.h",
}
EXCEPTIONS |= {f"clock in {folder}/{name}"
               for folder, names in CLOCK_READERS.items() for name in names.split()}

# Who may include whom. tests/ and bench/ are included by nobody else.
ARROWS = {
    "core": {"core"},
    "kernels": {"kernels", "core"},
    "comm": {"comm", "core"},
    "deploy": {"deploy", "kernels", "comm", "core"},
    "tests": {"tests", "deploy", "kernels", "comm", "core"},
    "bench": {"bench", "deploy", "kernels", "comm", "core"},
}
# The same inside deploy/: a part, and the other parts of deploy/ that it may know. A folder without
# a line here belongs to the part above it; a folder directly below deploy/ without one includes
# nothing of deploy/.
PARTS = {
    "deploy/service/protocol": set(),
    "deploy/service/transport": set(),
    "deploy/service/client": {"deploy/service/protocol", "deploy/service/transport"},
    "deploy/service/control": {"deploy/service/protocol"},
    "deploy/service/worker": {"deploy/service/protocol", "deploy/service/transport",
                              "deploy/runtime"},
    "deploy/runtime": set(),
    "deploy/local": {"deploy/service/protocol", "deploy/service/transport",
                     "deploy/service/client", "deploy/service/control", "deploy/service/worker",
                     "deploy/runtime"},
    "deploy/options": {"deploy/runtime", "deploy/service/transport"},
    "deploy/predict": {"deploy/options", "deploy/service/protocol", "deploy/service/control", "deploy/runtime"},
    "deploy/app": {"deploy/options", "deploy/predict", "deploy/service/protocol", "deploy/service/transport", "deploy/service/client",
                   "deploy/service/control", "deploy/service/worker", "deploy/local",
                   "deploy/runtime"},
    "deploy/package": {"deploy/service/client"},  # the header that others include
    "deploy/python": {"deploy/service/client", "deploy/service/protocol",
                      "deploy/service/transport", "deploy/local", "deploy/service/worker",
                      "deploy/runtime"},
}

# Headers of others: a pattern, and the folders where they may appear (with those folders' mirrors
# under tests/). A header that no line matches is an error: it needs a line first.
ANYWHERE = ("core", "kernels", "comm", "deploy", "tests", "bench")
VENDORS = [
    (r"mpi(-ext)?\.h", ("comm/mpi",)),
    (r"nccl\w*\.h", ("comm/nccl",)),
    (r"(ucp|uct|ucs|ucm)/.*", ("comm/ucx",)),
    (r"(cuda|cublas|cute|cutlass|cooperative_groups|nv)\w*(\.h|\.hpp|/.*)?",
     ("kernels/cuda", "comm/nccl", "tests/gpu")),
    (r"boost/(asio|beast)(\.hpp|/.*)", ("comm/http", "comm/tcp")),
    (r"boost/context/.*", ("kernels/cuda",)),  # its tests: fibers of emulated threads
    (r"sanitizer/.*", ("tests",)),
    (r"(oneapi/)?dnnl.*", ("kernels/cpu", "bench")),
    (r"(openssl)/.*", ("comm/http", "comm/wire")),
    (r"isa-l/.*", ("comm/wire",)),
    (r"prometheus/.*", ("deploy",)),
    (r"hwy/.*", ("kernels/cpu", "deploy/app/bench", "bench")),
    (r"[xtepnsai]mmintrin\.h|immintrin\.h|cpuid\.h", ("kernels/cpu",)),
    (r"CLI/.*", ("deploy", "bench")),
    (r"spdlog/.*", ("deploy",)),
    (r"toml\+\+/.*", ("deploy",)),
    (r"tributary/client\.h", ("deploy/package",)),  # as another project includes it
    (r"(nanobind|numpy)/.*", ("deploy/python",)),
    (r"benchmark/.*", ("bench",)),
    (r"(gtest|gmock)/.*", ("tests",)),
    (r"nlohmann/.*", ANYWHERE),
    (r"fmt/.*", ANYWHERE),
    # The C++ library, and what of POSIX and Linux we use.
    (r"[a-z_0-9]+", ANYWHERE),
    (r"(sys|linux|net|netinet|arpa|gnu)/[a-z_-]+\.h", ANYWHERE),
    (r"(dirent|dlfcn|fcntl|ifaddrs|malloc|netdb|poll|pthread|sched|signal|spawn|stdio|stdlib|termios|time|unistd)\.h",
     ANYWHERE),
]
# A header that other folders include may itself include only these of others.
PUBLIC = re.compile(r"[a-z_0-9]+|fmt/.*|(sys|linux)/.*|[a-z]+\.h")
# Includes the JSON library: only for sources, and for headers of deploy/ that are marked likewise.
FOR_SOURCES = {"core/base/strict_json.h"}
VENDOR_TYPES = re.compile(r"(mpi|nccl|cuda|dnnl|immintrin|cpuid)\w*\.h")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class Tree:
    """Our files under a root: their text, and what each includes."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.text = {}
        for folder in FOLDERS:
            for path in sorted((self.root / folder).rglob("*")):
                if path.suffix in HEADERS + UNITS + SCRIPTS and path.is_file():
                    name = path.relative_to(self.root).as_posix()
                    self.text[name] = path.read_text(encoding="utf-8")
        self.includes = {
            name: [(mark == "<", what)
                   for mark, what in INCLUDE.findall(COMMENT.sub("", text))]
            for name, text in self.text.items() if name.endswith(HEADERS + UNITS)
        }

    def cmake_lists(self):
        return sorted(path for folder in FOLDERS
                      for path in (self.root / folder).rglob("CMakeLists.txt"))


def top(name):
    return name.split("/", 1)[0]


def folder_of(name):
    return name.rpartition("/")[0]


def part_of(name):
    """`core/cache` of `core/cache/page_pool.h`; `core` of `core/x.h`; three levels at most."""
    return "/".join(name.split("/")[:-1][:3])


def deploy_part(name):
    """The line of PARTS that a file of deploy/ belongs to, or its folder where there is none."""
    for part in PARTS:
        if name.startswith(part + "/"):
            return part
    return folder_of(name)


def check_includes(tree):
    """Ours go in quotes, from the root, along the arrows, and exist."""
    for name, includes in tree.includes.items():
        for angled, what in includes:
            ours = top(what) in FOLDERS and "/" in what
            if ours and angled:
                yield f"{name}: includes <{what}>: our headers go in quotes"
            elif ours and what not in tree.text:
                yield f"{name}: includes \"{what}\", which does not exist"
            elif ours and top(what) not in ARROWS[top(name)]:
                yield f"{name}: includes \"{what}\": {top(name)}/ must not know {top(what)}/"
            elif not ours and not angled:
                yield f"{name}: includes \"{what}\": quotes are for paths from the root"


def check_parts(tree):
    """Inside deploy/ includes go along PARTS."""
    for name, includes in tree.includes.items():
        for _, what in includes:
            if top(name) == top(what) == "deploy" and what in tree.text:
                part, other = deploy_part(name), deploy_part(what)
                if other != part and other not in PARTS.get(part, ()):
                    yield f"{name}: includes \"{what}\": {part}/ must not know {other}/"


def vendor_places(what):
    for pattern, places in VENDORS:
        if re.fullmatch(pattern, what):
            return places
    return None


def check_vendors(tree):
    """A header of others appears only in its own folder, and in that folder's tests."""
    for name, includes in tree.includes.items():
        for angled, what in includes:
            if not angled or top(what) in FOLDERS:
                continue
            places = vendor_places(what)
            if places is None:
                yield f"{name}: includes <{what}>, which tests/structure_rules.py does not know"
            elif not any(name.startswith((place + "/", f"tests/{place}/")) for place in places):
                yield f"{name}: includes <{what}>, which belongs in {' or '.join(places)}"


def audience_of(name):
    """What a header is private to: core and deploy as wholes, each part of comm and kernels."""
    return top(name) if top(name) in ("core", "deploy") else "/".join(part_of(name).split("/")[:2])


def public_headers(tree):
    """Headers that others than their own audience, tests and benchmarks include, and who does."""
    public = collections.defaultdict(set)
    for name, includes in tree.includes.items():
        if top(name) not in ("tests", "bench"):
            for _, what in includes:
                if (what in tree.includes and audience_of(what) != audience_of(name)
                        and what not in FOR_SOURCES):
                    public[what].add(audience_of(name))
    return public


def may_see(audience, what):
    """Whether a header of others may be shown to an audience: only if it may include it anyway."""
    if PUBLIC.fullmatch(what) and not VENDOR_TYPES.fullmatch(what):
        return True
    return audience in (vendor_places(what) or ())


def check_public_headers(tree):
    """A public header, and what it includes, shows no vendor's header and no build flag."""
    through = collections.defaultdict(dict)  # header -> audience: the public header that shows it
    for header, audiences in sorted(public_headers(tree).items()):
        todo = [header]
        while todo:
            name = todo.pop()
            new = {audience: header for audience in audiences if audience not in through[name]}
            if new:
                through[name].update(new)
                todo += [what for _, what in tree.includes[name] if what in tree.includes]
    for name, shown in through.items():
        header = min(shown.values())
        if re.search(r"^[ \t]*#[ \t]*(if|ifdef|ifndef)\b", tree.text[name], re.MULTILINE):
            yield f"{name}: a public header (through {header}) depends on a build flag"
        for angled, what in tree.includes[name]:
            hidden = [shown[audience] for audience in sorted(shown) if not may_see(audience, what)]
            if angled and hidden:
                yield f"{name}: a public header (through {hidden[0]}) shows <{what}>"


def check_cycles(tree):
    """The parts of a folder (core/base, core/cache, ...) include each other without a cycle."""
    graph = collections.defaultdict(dict)
    for name, includes in tree.includes.items():
        for _, what in includes:
            if (what in tree.text and top(what) == top(name) and top(name) != "tests"
                    and part_of(what) != part_of(name)):
                graph[part_of(name)].setdefault(part_of(what), f"{name} includes {what}")
    state, trail = {}, []

    def visit(part):
        state[part] = "open"
        trail.append(part)
        for target in sorted(graph.get(part, {})):
            if state.get(target) == "open":
                ring = trail[trail.index(target):] + [target]
                edges = "; ".join(graph[a][b] for a, b in zip(ring, ring[1:]))
                yield f"cycle {' -> '.join(ring)}: {edges}"
            elif target not in state:
                yield from visit(target)
        trail.pop()
        state[part] = "done"

    for part in sorted(graph):
        if part not in state:
            yield from visit(part)


def check_files(tree):
    """First a comment, `#pragma once` in headers, not too long.

    A source, or its test, that begins with its own header is introduced by that header's comment.
    """
    for name, text in tree.text.items():
        lines = text.splitlines()
        if len(lines) > MAX_LINES:
            yield f"{name}: {len(lines)} lines; at most {MAX_LINES}"
        first = lines[1:2] if lines and lines[0].startswith("#!") else lines[:1]
        mark = "#" if name.endswith(SCRIPTS) else ("//", "/*")
        own = re.sub(r"(_test)?\.\w+$", "", name.rpartition("/")[2])
        if not first or not (first[0].startswith(mark) or name.endswith(UNITS)
                             and re.fullmatch(rf'#include "(.*/)?{own}\.h"', first[0])):
            yield f"{name}: does not start with a comment that says what it is for"
        # Highway compiles an -inl.h once per instruction set: it has a guard that toggles.
        if name.endswith(HEADERS) and "HWY_TARGET_TOGGLE" not in text:
            if not re.search(r"^#pragma once$", text, re.MULTILINE):
                yield f"{name}: no #pragma once"


def check_orphans(tree):
    """Every source is named by a CMakeLists.txt at or above its folder."""
    listed = set()
    for path in tree.cmake_lists():
        text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
        for word in re.findall(r"(?:[\w./-]|\$\{\w+\})+\.(?:cc|cu)\b", text):
            listed.add(posixpath.normpath(
                f"{path.parent.relative_to(tree.root).as_posix()}/{word}"))
    # `${name}_fuzz.cc`, in a function, stands for whatever name it is called with.
    families = [re.compile(re.sub(r"\\\$\\\{\w+\\\}", "\\\\w+", re.escape(entry)))
                for entry in listed if "$" in entry]
    for name in tree.text:
        if (name.endswith(UNITS) and name not in listed
                and not any(family.fullmatch(name) for family in families)):
            yield f"{name}: no CMakeLists.txt lists it"


# A class, at the beginning of a line as namespaces do not indent, up to its brace.
CLASS = re.compile(r"^(class|struct) (?:\[\[\w+\]\] )?(\w+)(?: final)?(?: : [^{;]*)? ?\{", re.MULTILINE)
ACCESS = re.compile(r"^\s*(public|protected|private):\s*$", re.MULTILINE)
# In a body without what stands in brackets.
FUNCTION = re.compile(r"(~?\w+|operator *[^\s(]+) ?\(\)([^;{}]*)(?:\{\}|;)")
MEMBER = re.compile(r"^(?!using|namespace)[^\s;={}()][^\n;={}()]*?\b(\w+)(?:<[^\n>]*>)?::~?\w+\("
                    r"|^(\w+)::~?\w+\(", re.MULTILINE)


def code_of(text):
    """The text without comments, preprocessor lines and what is quoted."""
    text = COMMENT.sub("", re.sub(r"//[^\n]*", "", text))
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.MULTILINE)
    return re.sub(r"'(?:\\.|[^'\\\n])'|" + r'"(?:\\.|[^"\\\n])*"', '""', text)


def outline(code, start):
    """The body that begins at code[start], a brace: what is nested in brackets left out."""
    kept, nested = [], ""
    for c in code[start + 1:]:
        if c in "({":
            if not nested:
                kept.append(c)
            nested += c
        elif c in ")}":
            if not nested:
                break
            nested = nested[:-1]
            if not nested:
                kept.append(c)
        elif not nested:
            kept.append(c)
    return "".join(kept)


def public_functions(kind, name, body):
    """Constructors, operators and what is defaulted or deleted do not count."""
    access, found = "public" if kind == "struct" else "private", []
    for part in ACCESS.split(body):
        if part in ("public", "protected", "private"):
            access = part
        elif access == "public":
            found += [function for function, rest in FUNCTION.findall(part)
                      if function.lstrip("~") != name and not function.startswith("operator")
                      and not rest.startswith(">")  # a type: std::function<void()>
                      and "= default" not in rest and "= delete" not in rest]
    return found


def check_classes(tree):
    """A class has one name, one header, one source and few public functions."""
    headers, sources = collections.defaultdict(list), collections.defaultdict(set)
    for name, text in tree.text.items():
        if name.endswith(HEADERS):
            code = code_of(text)
            for found in CLASS.finditer(code):
                kind, of = found.groups()
                headers[of].append(name)
                functions = public_functions(kind, of, outline(code, found.end() - 1))
                if len(functions) > MAX_PUBLIC:
                    yield (f"functions of {of}: {name}: {len(functions)} public ones; "
                           f"at most {MAX_PUBLIC}")
        elif name.endswith(UNITS):
            for of, constructed in MEMBER.findall(code_of(text)):
                sources[of or constructed].add(name)
    for of, names in headers.items():
        if len(names) > 1:
            yield f"class {of}: more than one of that name: {', '.join(names)}"
        elif len(sources[of]) > 1:
            yield f"sources of {of}: {', '.join(sorted(sources[of]))}: a class has one"


def check_names(tree):
    """A header has a name of its own: includes and talk name it without its folder."""
    named = collections.defaultdict(list)
    for name in tree.text:
        if name.endswith(HEADERS) and top(name) != "tests":
            named[name.rpartition("/")[2]].append(name)
    for name, paths in named.items():
        if len(paths) > 1:
            yield f"header {name}: more than one of that name: {', '.join(paths)}"


# Calls that a library must not make: flags and environment are read in deploy/ alone, numbers are
# parsed with their errors, and only a program ends a process.
FORBIDDEN_CALLS = re.compile(
    r"\b(getenv|secure_getenv|atoi|atol|atof|std::exit|_exit|quick_exit)\(")
# Files that may: the launcher's variables are how a process learns that mpirun started it.
MAY_CALL = {"comm/mpi/launcher.cc": {"getenv"}}


def check_calls(tree):
    for name, text in tree.text.items():
        if top(name) in ("core", "kernels", "comm") and name.endswith(HEADERS + UNITS):
            for number, line in enumerate(text.splitlines(), start=1):
                found = FORBIDDEN_CALLS.search(line.split("//")[0])
                if found and found[1] not in MAY_CALL.get(name, ()):
                    yield f"{name}:{number}: calls {found[1]}: not in a library"


CLOCK_READ = re.compile(
    r"[Cc]lock::now\(\)|\bsteady_clock\(\)|\bseconds_since\(|\bexpired\(\)|\bDeadline::after(?=\()")


def clock_reads(text):
    code = code_of(text)
    for found in CLOCK_READ.finditer(code):
        # after(now, duration) is arithmetic.
        if found[0] != "Deadline::after" or "," not in outline(code, found.end()):
            yield found[0]


def check_clocks(tree):
    """The files of the product that read a clock are listed."""
    for name in tree.includes:
        reads = list(clock_reads(tree.text[name]))
        if reads and top(name) not in ("tests", "bench"):
            yield f"clock in {name}: {len(reads)} reads, the first is {reads[0]}"


HEXADECIMAL_ID = re.compile(r'sequence \{:#?x\}')


def check_ids(tree):
    """A sequence has one name, decimal, in every message, log, URL and file."""
    for name, text in tree.text.items():
        for number, line in enumerate(text.splitlines(), start=1):
            if name.endswith(HEADERS + UNITS) and HEXADECIMAL_ID.search(line):
                yield f"{name}:{number}: a sequence's id is decimal everywhere"


PACKAGE_SECTIONS = ("build", "run", "pod", "python", "test", "rootfs")
PACKAGE_NAME = r"[a-z0-9][a-z0-9+.-]+"


def package_line(line, systems):
    """The errors in a line of names, if any, and the system of each name."""
    names = [(system, name) for system, _, name in (word.rpartition(":") for word in line.split())]
    wrong = None
    for system, name in names:
        if system and system not in systems:
            wrong = f"{system} is no system of {', '.join(systems)}"
        elif not re.fullmatch(PACKAGE_NAME, name):
            wrong = f"not a package name: {name}"
    if len({system for system, _ in names}) < len(names):
        wrong = f"more than one name for a system: {line}"
    elif names[1:] and not all(system for system, _ in names[1:]):
        wrong = f"the name of all other systems comes first: {line}"
    return wrong, names


def check_packages(tree):
    """deploy/packages.txt: systems, then known sections, good names, none twice in a system."""
    path = tree.root / "deploy" / "packages.txt"
    if not path.is_file():
        yield "deploy/packages.txt: missing"
        return
    section, systems, seen = None, [], {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        where = f"deploy/packages.txt:{number}"
        if line.startswith("systems:") and not systems and section is None:
            systems = line.split()[1:]
        elif line.startswith("["):
            section = line.strip("[]")
            if section not in PACKAGE_SECTIONS:
                yield f"{where}: unknown section {line}; there are {', '.join(PACKAGE_SECTIONS)}"
            if not systems:
                yield f"{where}: no systems are named before the first section"
                systems = ["?"]
        elif section is None:
            yield f"{where}: {line} stands before the first section"
        else:
            wrong, names = package_line(line, systems)
            if wrong:
                yield f"{where}: {wrong}"
            twice = [name for name in names if name in seen]
            if twice:
                yield f"{where}: {line} is in line {seen[twice[0]]} already"
            seen |= {name: number for name in names if name not in seen}


RULES = (check_includes, check_parts, check_vendors, check_public_headers, check_cycles, check_files,
         check_orphans, check_classes, check_names, check_calls, check_clocks,
         check_ids, check_packages)


def findings(root, exceptions=()):
    """What breaks a rule, apart from the exceptions, each the part of a finding before its colon."""
    tree = Tree(root)
    found = [finding for rule in RULES for finding in rule(tree)]
    needed = {finding.partition(":")[0] for finding in found}
    return sorted([finding for finding in found if finding.partition(":")[0] not in exceptions]
                  + [f"{exception}: an exception that is not needed"
                     for exception in exceptions if exception not in needed])
