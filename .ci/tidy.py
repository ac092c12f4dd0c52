#!/usr/bin/env python3
# Runs clang-tidy on our sources of a compile_commands.json: .ci/tidy.py BUILD_FOLDER [PATH...]
# A source that passed is not run again until it, a header of ours that it includes, its command,
# the configuration or clang-tidy changes.
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "tidy"
FOLDERS = ("core", "kernels", "comm", "deploy", "tests", "bench")
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
NOISE = re.compile(r"\d+ warnings? .*generated\.$|Suppressed \d+ |Use -header")
FILE_LIMIT_S = 300  # one source; the slowest takes some 20 s on one core
# The path-sensitive checks (clang-analyzer-*) cost more than all others together, most of it in
# functions that they follow calls into; shallow, they follow small ones alone, in a third of the time.
SHALLOW = ["--extra-arg=-Xclang", "--extra-arg=-analyzer-config", "--extra-arg=-Xclang",
           "--extra-arg=mode=shallow"]


class Sources:
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


def configuration_of(path, texts):
    """The .clang-tidy files that apply to a source."""
    found = []
    for folder in path.parents:
        config = folder / ".clang-tidy"
        if config not in texts:
            texts[config] = config.read_text() if config.is_file() else None
        if texts[config] is not None:
            found.append(texts[config])
        if folder == ROOT:
            break
    return "\n".join(found)


def run(tidy, build, depth, path):
    command = [tidy, "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option",
               *depth, str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FILE_LIMIT_S,
                              check=False)
    except subprocess.TimeoutExpired:
        return False, f"{path}: clang-tidy took longer than {FILE_LIMIT_S} s"
    errors = [line for line in done.stderr.splitlines() if line and not NOISE.match(line)]
    return done.returncode == 0, (done.stdout + "\n".join(errors)).strip()


def main():
    parser = argparse.ArgumentParser(description="clang-tidy over our sources, with a cache")
    parser.add_argument("build", type=pathlib.Path, help="folder of compile_commands.json")
    parser.add_argument("paths", nargs="*", help="only sources whose path starts with one of these")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--deep", action="store_true", help="follow paths through every call")
    parser.add_argument("--tidy", default="clang-tidy-14", help="the program to run")
    args = parser.parse_intermixed_args()

    try:
        database = json.loads((args.build / "compile_commands.json").read_text())
        version = subprocess.run([args.tidy, "--version"], capture_output=True, text=True,
                                 timeout=60, check=True).stdout
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"tidy: {error}", file=sys.stderr)
        return 2

    depth = [] if args.deep else SHALLOW
    sources, config_texts, pending, fresh = Sources(), {}, [], 0
    seen = set()
    for entry in database:
        path = (pathlib.Path(entry["directory"]) / entry["file"]).resolve()
        if path in seen or ROOT not in path.parents or path.suffix == ".cu":
            continue  # clang 14 cannot parse CUDA 13: nvcc's warnings have to do
        relative = path.relative_to(ROOT)
        if relative.parts[0] not in FOLDERS or not path.is_file():
            continue
        if args.paths and not str(relative).startswith(tuple(args.paths)):
            continue
        seen.add(path)
        command = entry.get("command") or shlex.join(entry["arguments"])
        key = hashlib.sha256("\0".join([
            version, *depth, configuration_of(path, config_texts), command.replace(str(args.build), ""),
            str(relative), sources.digest(path)]).encode()).hexdigest()
        if (CACHE / key).exists():
            fresh += 1
        else:
            pending.append((path, relative, key))
    if not seen:
        print("tidy: no source of ours in compile_commands.json", file=sys.stderr)
        return 2

    CACHE.mkdir(parents=True, exist_ok=True)
    # The largest first, so that no core idles at the end.
    pending.sort(key=lambda item: item[0].stat().st_size, reverse=True)
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, args.j)) as workers:
        jobs = {workers.submit(run, args.tidy, args.build, depth, path): (relative, key)
                for path, relative, key in pending}
        for number, job in enumerate(concurrent.futures.as_completed(jobs), start=1):
            relative, key = jobs[job]
            passed, text = job.result()
            print(f"[{number}/{len(pending)}] {relative}{'' if passed else ': FAILED'}", flush=True)
            if passed:
                (CACHE / key).touch()
            else:
                failures += 1
                print(text, flush=True)
    print(f"tidy: {len(seen)} sources, {fresh} unchanged, {len(pending) - failures} passed now, "
          f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
