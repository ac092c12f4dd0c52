#!/usr/bin/env python3
# Runs clang-tidy on our sources of a compile_commands.json: .ci/tidy.py BUILD_FOLDER [PATH...]
# A source that passed is not run again until it, a header of ours that it includes, its command,
# the configuration or clang-tidy changes. Most of clang-tidy's time goes into headers, so that
# sources with one command are checked as one file: their text, one after another, each header
# included once. (Sources that #include each other would not do: the analyzer looks at functions of
# the main file alone.) What such a batch says never fails a source: its halves are checked, down
# to single sources as they are, and these decide.
import argparse
import bisect
import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "tidy"
FOLDERS = ("core", "kernels", "comm", "deploy", "tests", "bench")
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
# A source with other directives than #include may mean something else after another's text.
NOT_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*(?!include\b)", re.MULTILINE)
ANY_INCLUDE = re.compile(rb'[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]')
NOISE = re.compile(r"\d+ warnings? .*generated\.$|Suppressed \d+ |Use -header")
BATCH_SOURCES = 12  # more save little, and leave a core idle at the end
RUN_LIMIT_S = 1200  # against a hang; a batch takes some 20 s of CPU, which a busy machine stretches
# The path-sensitive checks (clang-analyzer-*) cost more than all others together, most of it in
# functions that they follow calls into; shallow, they follow small ones alone, in a third of the time.
SHALLOW = ["--extra-arg=-Xclang", "--extra-arg=-analyzer-config", "--extra-arg=-Xclang",
           "--extra-arg=mode=shallow"]


class Files:
    """Contents of our files and what they include, each read once."""

    def __init__(self):
        self._known = {}

    def _read(self, path):
        if path not in self._known:
            data = path.read_bytes()
            includes = []
            for name in INCLUDE.findall(data):
                for base in (ROOT, path.parent):
                    found = base / os.fsdecode(name)
                    if found.is_file():
                        includes.append(found.resolve())
                        break
            self._known[path] = (hashlib.sha256(data).digest(), includes)
        return self._known[path]

    def digest(self, path):
        """Hash of the file and of everything of ours that it includes, however deep."""
        seen, todo = {}, [path]
        while todo:
            current = todo.pop()
            if current not in seen:
                seen[current], includes = self._read(current)
                todo.extend(includes)
        total = hashlib.sha256()
        for current in sorted(seen):
            total.update(str(current.relative_to(ROOT)).encode() + b"\0" + seen[current])
        return total.hexdigest()


@dataclasses.dataclass(frozen=True)
class Source:
    path: pathlib.Path
    directory: str  # that the compiler runs in
    flags: tuple  # the compiler and its flags, without the source and the output
    configs: tuple  # text of each .clang-tidy in its folders below the root, the nearest first
    alone: bool  # not to be checked together with others

    @property
    def name(self):
        return str(self.path.relative_to(ROOT))

    @property
    def batch_key(self):
        """Sources of one batch have it in common."""
        folder = self.name if self.alone else self.name.partition("/")[0]
        return folder, self.directory, self.flags, self.configs


class Tidy:
    def __init__(self, program, build, depth):
        self._command = [program, "--quiet", "--extra-arg=-Wno-unknown-warning-option", *depth]
        self._build = build

    def check(self, sources):
        """Whether the sources pass together, and what clang-tidy says."""
        if len(sources) == 1:
            return self._run(self._build, sources[0].path)
        with tempfile.TemporaryDirectory(prefix="batch-", dir=CACHE) as name:
            folder = pathlib.Path(name)
            for config in reversed(sources[0].configs):
                folder /= "sources"
                folder.mkdir()
                (folder / ".clang-tidy").write_text(config)
            file = folder / "batch.cc"
            text, starts = joined(sources)
            file.write_bytes(text)
            command = {"directory": sources[0].directory, "file": str(file),
                       "arguments": [*sources[0].flags, "-c", str(file)]}
            (folder / "compile_commands.json").write_text(json.dumps([command]))
            passed, output = self._run(folder, file)

        def origin(match):
            line = int(match[1])
            index = bisect.bisect_right(starts, line) - 1
            return f"{sources[index].path}:{line - starts[index] + 1}"

        return passed, re.sub(re.escape(str(file)) + r":(\d+)", origin, output)

    def _run(self, database, path):
        try:
            done = subprocess.run([*self._command, "-p", str(database), str(path)], text=True,
                                  capture_output=True, timeout=RUN_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return False, f"{path}: error: clang-tidy took longer than {RUN_LIMIT_S} s"
        errors = [line for line in done.stderr.splitlines() if line and not NOISE.match(line)]
        return done.returncode == 0, (done.stdout + "\n".join(errors)).strip()


def joined(sources):
    """The sources' text as one, and the number of each one's first line in it."""
    lines, starts, included = [], [], set()
    for source in sources:
        starts.append(len(lines) + 1)
        own = set()
        for line in source.path.read_bytes().splitlines():
            match = ANY_INCLUDE.match(line)
            if match:
                # A header is a duplicate only if this source has included it, not if another has.
                again = match[1] in included and match[1] not in own
                own.add(match[1])
                included.add(match[1])
                line = b"" if again else line
            lines.append(line)
    return b"\n".join(lines) + b"\n", starts


def batches_of(sources):
    """Sources in groups to check together, the largest first so that no core idles at the end."""
    batches = []
    ordered = sorted(sources, key=lambda source: (source.batch_key, source.path))
    for _, group in itertools.groupby(ordered, key=lambda source: source.batch_key):
        group = list(group)
        count = -(-len(group) // BATCH_SOURCES)
        bounds = [len(group) * part // count for part in range(count + 1)]
        batches += [group[begin:end] for begin, end in itertools.pairwise(bounds)]
    batches.sort(key=lambda batch: sum(item.path.stat().st_size for item in batch), reverse=True)
    return batches


def check_all(tidy, sources, jobs, passed):
    """Calls passed(source) for each that passes; returns how many fail and how many batches did."""
    done, failures, splits = 0, 0, 0
    with concurrent.futures.ThreadPoolExecutor(max(1, jobs)) as workers:
        running = {workers.submit(tidy.check, batch): batch for batch in batches_of(sources)}
        while running:
            ready = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED).done
            for job in ready:
                batch = running.pop(job)
                good, text = job.result()
                label = ", ".join(source.name for source in batch)
                if not good and len(batch) > 1:
                    splits += 1
                    first = next((line for line in text.splitlines() if " error: " in line), text)
                    print(f"these fail together and are checked in halves, slowly: {label}\n"
                          f"  {first}", flush=True)
                    middle = len(batch) // 2
                    for half in (batch[:middle], batch[middle:]):
                        running[workers.submit(tidy.check, half)] = half
                    continue
                done += len(batch)
                print(f"[{done}/{len(sources)}] {label}{'' if good else ': FAILED'}", flush=True)
                if good:
                    for source in batch:
                        passed(source)
                else:
                    failures += 1
                    print(text, flush=True)
    return failures, splits


def ours(entry, paths):
    """The source of a compile command, or none if it is not for us to check."""
    path = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
    if ROOT not in path.parents or path.suffix == ".cu" or not path.is_file():
        return None  # clang 14 cannot parse CUDA 13: nvcc's warnings have to do
    name = str(path.relative_to(ROOT))
    if name.partition("/")[0] not in FOLDERS or (paths and not name.startswith(tuple(paths))):
        return None
    return path


def configs_of(path):
    folders = path.parents[:len(path.relative_to(ROOT).parts) - 1]
    files = [folder / ".clang-tidy" for folder in folders]
    return tuple(file.read_text() for file in files if file.is_file())


def must_be_alone(path, configs, deep):
    # The analyzer leaves out a function that it followed a call into. Shallow, these are so small
    # that nothing is lost; in depth a source's functions would be left out for another's calls.
    analyzed = not any("-clang-analyzer-*" in config for config in configs)
    return (deep and analyzed) or NOT_INCLUDE.search(path.read_bytes()) is not None


def flags_of(entry):
    arguments = entry.get("arguments") or shlex.split(entry["command"])
    kept, rest = [], iter(arguments)
    for argument in rest:
        if argument == "-o":
            next(rest)
        elif argument not in ("-c", entry["file"]):
            kept.append(argument)
    return tuple(kept)


def main():
    parser = argparse.ArgumentParser(description="clang-tidy over our sources, with a cache")
    parser.add_argument("build", type=pathlib.Path, help="folder of compile_commands.json")
    parser.add_argument("paths", nargs="*", help="only sources whose path starts with one of these")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--deep", action="store_true", help="follow paths through every call")
    parser.add_argument("--tidy", default="clang-tidy", help="the program to run")
    args = parser.parse_intermixed_args()

    depth = [] if args.deep else SHALLOW
    tidy, files, keys, pending = Tidy(args.tidy, args.build, depth), Files(), {}, []
    try:
        root_config = (ROOT / ".clang-tidy").read_text()
        database = json.loads((args.build / "compile_commands.json").read_text())
        version = subprocess.run([args.tidy, "--version"], capture_output=True, text=True,
                                 timeout=60, check=True).stdout
        for entry in database:
            path = ours(entry, args.paths)
            if path is None or path in keys:
                continue
            configs = configs_of(path)
            source = Source(path, entry["directory"], flags_of(entry), configs,
                            must_be_alone(path, configs, args.deep))
            keys[path] = hashlib.sha256("\0".join([
                version, *depth, root_config, *source.configs, *source.flags, source.name,
                files.digest(path)]).encode()).hexdigest()
            if not (CACHE / keys[path]).exists():
                pending.append(source)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"tidy: {error}", file=sys.stderr)
        return 2
    if not keys:
        print("tidy: no source of ours in compile_commands.json", file=sys.stderr)
        return 2

    CACHE.mkdir(parents=True, exist_ok=True)
    failures, splits = check_all(tidy, pending, args.j,
                                 lambda source: (CACHE / keys[source.path]).touch())
    print(f"tidy: {len(keys)} sources, {len(keys) - len(pending)} unchanged, "
          f"{len(pending) - failures} passed now, {failures} failed")
    if splits and not failures:
        print(f"tidy: {splits} batches fail but none of their sources does: if a name is declared "
              "twice, rename one")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
