#!/usr/bin/env python3
# Plants faults, one after the other, and says which test finds each: run.py BUILD [NAME ...], all of
# faults.toml by default. BUILD is a release build that is up to date, of a clone that nobody else
# uses: a fault is planted in its sources and taken back at the end. For each fault the programs of
# ctest that link the file are built and run until a test fails: first the test that the list names
# (with --first no other), then unit tests before others, and those of the file's own folder first.
# --programs REGEX: only programs that match. Ends with 1 where a fault was not found. Hours are
# those of building and running. Not part of CI.
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import planted_faults  # noqa: E402

LABELS = ("unit", "mpi", "program", "service")  # in this order, then all others


def output(build, *command):
    run = subprocess.run(command, cwd=build, check=True, capture_output=True, text=True)
    return run.stdout


def source_of(build):
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    return pathlib.Path(re.search("^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache, re.M)[1])


class Graph:
    """Who links what, as ninja knows it."""

    def __init__(self, build):
        self.build = build
        self.objects = collections.defaultdict(set)  # by the path of a source or a header
        for entry in output(build, "ninja", "-t", "deps").split("\n\n"):
            lines = entry.splitlines()
            for line in lines[1:]:
                path = os.path.normpath(build / line.strip())
                self.objects[path].add(lines[0].partition(":")[0])
        targets = output(build, "ninja", "-t", "targets", "all")
        programs = re.findall("^([^:\n]*): CXX_EXECUTABLE_LINKER", targets, re.M)
        self.inputs = {program: set(output(build, "ninja", "-t", "inputs", program).splitlines())
                       for program in programs}

    def programs_of(self, path):
        objects = self.objects[str(path)]
        return [each for each, inputs in self.inputs.items() if not objects.isdisjoint(inputs)]

    def make(self, program):
        run = subprocess.run(("ninja", program), cwd=self.build, capture_output=True, text=True,
                             check=False)
        if run.returncode != 0:
            sys.exit(f"{program} was not built:\n{run.stdout}")


class Suite:
    """The tests of ctest, in the order of their numbers."""

    def __init__(self, build):
        self.build = build
        self.read()

    def read(self):
        self.tests = json.loads(output(self.build, "ctest", "--show-only=json-v1"))["tests"]

    def name(self, number):
        return self.tests[number - 1]["name"]

    def numbers_of(self, program):
        """Numbers of the tests that run the program, itself or by a path in their environment."""
        word = re.compile(re.escape(str(self.build / program)) + r'(?=["\s;]|$)')
        return [number for number, test in enumerate(self.tests, 1)
                if any(word.search(text) for text in self.words(test))]

    @staticmethod
    def words(test):
        for value in (test.get("command", []), *(p["value"] for p in test["properties"])):
            yield from map(str, value if isinstance(value, list) else [value])

    def labels_of(self, number):
        properties = self.tests[number - 1]["properties"]
        return next((p["value"] for p in properties if p["name"] == "LABELS"), [])

    def rank(self, program, fault):
        """Where a program stands in the order."""
        numbers = self.numbers_of(program)
        if fault["test"] in map(self.name, numbers):
            return (-1, 0)
        labels = {label for number in numbers for label in self.labels_of(number)}
        kind = next((at for at, label in enumerate(LABELS) if label in labels), len(LABELS))
        return (kind, -len(os.path.commonprefix([program, f"tests/{fault['file']}"])))

    def first_failure(self, numbers):
        """The name of the first of these tests that fails, or None."""
        chosen = ",".join(map(str, (numbers[0], numbers[0], 1, *numbers[1:])))
        run = subprocess.run(
            ("ctest", "-I", chosen, "--stop-on-failure", "--no-tests=error"), cwd=self.build,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        if run.returncode == 0:
            return None
        failed = re.search(r"^\s*\d+ - (\S+) \((.*)\)", run.stdout, re.M)
        if failed is None:
            sys.exit(f"ctest failed without a test that did:\n{run.stdout}")
        return failed[1] + (f" ({failed[2]})" if failed[2] != "Failed" else "")


def search(fault, path, graph, suite, options):
    """The test that finds the fault that is planted, or None, and how many tests ran."""
    ran = 0
    programs = [each for each in graph.programs_of(path) if re.search(options.programs, each)]
    for program in sorted(programs, key=lambda each: suite.rank(each, fault)):
        graph.make(program)
        suite.read()
        numbers = suite.numbers_of(program)
        first = fault["test"]
        named = [number for number in numbers if suite.name(number) == first]
        rest = [] if options.first else [number for number in numbers if number not in named]
        for part in filter(None, (named, rest)):
            ran += len(part)
            found = suite.first_failure(part)
            if found:
                return found, ran
        if options.first:
            break
    return None, ran


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("names", nargs="*")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--programs", default="", metavar="REGEX")
    options = parser.parse_intermixed_args()
    root = source_of(options.build)
    faults = {fault["name"]: fault for fault in planted_faults.read_faults()}
    graph, suite = Graph(options.build), Suite(options.build)
    missed = 0
    for fault in [faults[name] for name in options.names or faults]:
        begin = time.monotonic()
        path, sound, faulty = planted_faults.place_of(fault, root)
        try:
            path.write_text(faulty, encoding="utf-8")
            found, ran = search(fault, path, graph, suite, options)
        finally:
            path.write_text(sound, encoding="utf-8")
        missed += found is None
        hours = (time.monotonic() - begin) / 3600
        print(f"{fault['name']}: {found or 'NOT FOUND'}; {ran} tests, {hours:.3f} h", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
