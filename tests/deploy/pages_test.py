#!/usr/bin/env python3
# The pages as a newcomer reads them: every block of commands that can run here runs, in order, page by
# page; links and anchors lead somewhere; flags of the program exist. tests/README.md says how a page
# marks blocks.
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

sys.dont_write_bytecode = True
from program import PROGRAM, ROOT  # noqa: E402

BLOCK_LIMIT_S = 120
READY_LIMIT_S = 60
PORT = 7300  # of the pages
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
TOOL = re.compile(r"<!-- run where (\w+) is installed -->")
BACKGROUND = "<!-- run in the background -->"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
PATH_IN_REPOSITORY = re.compile(
    r"(?<![\w/.\-])(?:\./)?((?:bench|deploy|core|kernels|comm|tests|\.ci|build/release/\w+)"
    r"(?:/[a-z_\d]+)+(?:\.[a-z]+)*)(?![\w/*])")
# Programs of others whose flags pages name in running text.
FOREIGN = {"--host", "--mca", "--ulimit", "--no-deps", "--nodes", "--bind-to", "--signal", "--dcp-size",
           "--decode-context-parallel-size"}


def pages():
    left_out = {"build", ".git", ".cache"}
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.md")
                  if not left_out & set(part.split("-")[0] for part in path.relative_to(ROOT).parts[:1])
                  and ".venv" not in path.parts)


class Block:
    def __init__(self, language, marks, text, line):
        self.language, self.marks, self.text, self.line = language, marks, text, line

    def reason(self):
        if found := NOT_RUN.fullmatch(self.marks):
            return found[1]
        if (found := TOOL.fullmatch(self.marks)) and not shutil.which(found[1]):
            return f"{found[1]} is not installed"
        assert self.marks == BACKGROUND or found or not self.marks.startswith("<!--"), self.marks
        return None

    def commands(self):
        """How many lines of it are commands."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)


def blocks_of(page):
    """Fenced blocks, with the comment in the line before."""
    blocks, lines = [], (ROOT / page).read_text().splitlines()
    opened = None
    for number, line in enumerate(lines, 1):
        if opened is None and line.startswith("```"):
            opened = number
        elif opened is not None and line == "```":
            before = lines[opened - 2] if opened > 1 else ""
            blocks.append(Block(lines[opened - 1][3:], before, "\n".join(lines[opened:number - 1]),
                                opened))
            opened = None
    assert opened is None, f"{page}:{opened}: a block that does not end"
    return blocks


def prose_of(page):
    """Without fenced blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors_of(page):
    """As GitHub makes them."""
    found = []
    for heading in re.findall(r"^#+ +(.*)$", prose_of(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = found.count(anchor)
        found.append(anchor if number == 0 else f"{anchor}-{number}")
    return found


class Links(unittest.TestCase):
    def test_links_and_anchors_lead_somewhere(self):
        wrong, count = [], 0
        for page in pages():
            for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
                if re.match(r"[a-z]+:", target):
                    continue
                count += 1
                path, _, anchor = urllib.parse.unquote(target).partition("#")
                file = (ROOT / page).parent / path if path else ROOT / page
                if not file.exists():
                    wrong.append(f"{page}: {target}: no such file")
                elif anchor and anchor not in anchors_of(file.resolve().relative_to(ROOT)):
                    wrong.append(f"{page}: {target}: no such heading")
        self.assertEqual(wrong, [])
        self.assertGreater(count, 100)

    def test_paths_in_the_text_exist(self):
        """Sources may stand without their extension; what is built is named in its folder's list."""
        wrong, count = [], 0
        for page in pages():
            if page.name == "CHANGELOG.md":
                continue  # names what went
            commands = "\n".join(block.text for block in blocks_of(page) if block.language == "sh")
            words = set(re.findall(PATH_IN_REPOSITORY, prose_of(page) + commands))
            for targets in re.findall(r"ninja -C build/release ([\w ]+)$", commands, re.MULTILINE):
                words |= {f"build/release/bench/{target}" for target in targets.split()}
            for word in words:
                count += 1
                built = re.fullmatch(r"build/release/(\w+)/(\w+)", word)
                if built and built[2] != "tributary":
                    listed = (ROOT / built[1] / "CMakeLists.txt").read_text()
                    found = re.search(rf"add_executable\({built[2]}\s", listed)
                else:
                    found = (built or (ROOT / word).exists() or any(ROOT.glob(word + ".*"))
                             or pathlib.Path(word).name in ("token", "secret"))  # the reader makes them
                if not found:
                    wrong.append(f"{page}: {word}")
        self.assertEqual(wrong, [])
        self.assertGreater(count, 50)

    def test_every_page_is_in_the_index(self):
        index = pathlib.Path("deploy/guide/README.md")
        linked = {((ROOT / index).parent / target.partition("#")[0]).resolve()
                  for target in re.findall(r"\]\(([^)\s:]+)\)", prose_of(index))}
        self.assertEqual([str(page) for page in pages()
                          if ROOT / page not in linked and page != index], [])

    def test_the_readme_fits_a_sitting(self):
        text = (ROOT / "README.md").read_text()
        self.assertLessEqual(text.count("\n"), 250)
        self.assertLessEqual(len(text), 16_000)
        self.assertLess(text[:text.index("```sh")].count("\n"), 60)


class Flags(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.of = {}
        commands = re.findall(r"^  ([a-z]+) ", cls.help().partition("Commands:")[2], re.MULTILINE)
        assert len(commands) > 9, commands
        for command in commands:
            cls.of[command] = set(FLAG.findall(cls.help(command)))

    @staticmethod
    def help(*command):
        return subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True,
                              timeout=60, check=True).stdout

    def test_commands_have_the_flags_that_pages_give_them(self):
        wrong, count = [], 0
        for page in pages():
            commands = [line for block in blocks_of(page) if block.language == "sh"
                        for line in block.text.replace("\\\n", " ").splitlines()]
            commands += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose_of(page))]
            for line in commands:
                found = re.search(r"(?:^|[\s/])tributary ([a-z]+)\b(.*?)(?:[|;&#)]|$)", line)
                if found and found[1] in self.of:
                    count += 1
                    wrong += [f"{page}: tributary {found[1]}: {flag}"
                              for flag in FLAG.findall(found[2]) if flag not in self.of[found[1]]]
        self.assertEqual(wrong, [])
        self.assertGreater(count, 30)

    def test_flags_in_the_text_exist(self):
        known = set.union(*self.of.values()) | FOREIGN
        for script in [*ROOT.glob("bench/**/*"), *ROOT.glob("deploy/*.sh"), *ROOT.glob(".ci/*"),
                       *ROOT.glob("deploy/python/*.sh")]:
            if script.suffix in (".sh", ".py", ".cc") or script.name == "run":
                known |= set(FLAG.findall(script.read_text()))
        wrong = []
        for page in pages():
            if page.name == "CHANGELOG.md":
                continue  # names what went
            for span in re.findall(r"`([^`]+)`", prose_of(page)):
                if span.startswith("--"):
                    wrong += [f"{page}: {flag}" for flag in FLAG.findall(span) if flag not in known]
        self.assertEqual(wrong, [])

    def test_every_flag_stands_where_people_read(self):
        # What nobody is told of serves nobody: a page, a recipe or a script names it.
        places = [*pages(), *(path.relative_to(ROOT) for folder in ("bench", "deploy", ".ci")
                              for path in (ROOT / folder).rglob("*")
                              if path.suffix in (".sh", ".py", ".toml", ".yml", ".service", ".sbatch"))]
        text = "\n".join((ROOT / place).read_text() for place in places)
        self.assertEqual(sorted(set.union(*self.of.values()) - set(FLAG.findall(text))), [])


class Commands(unittest.TestCase):
    """Pages run in a copy of the tree, with the built program where they expect it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.tree = pathlib.Path(cls.folder.name, "tributary")
        shutil.copytree(ROOT, cls.tree, symlinks=True, ignore=lambda folder, names: [
            name for name in names if pathlib.Path(folder) == ROOT
            and (name in (".git", ".cache") or name.startswith("build"))])
        program = cls.tree / "build" / "release" / "deploy" / "tributary"
        program.parent.mkdir(parents=True)
        program.symlink_to(pathlib.Path(PROGRAM).resolve())
        cls.environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        cls.ran, cls.skipped = [], []

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        ran, skipped = (sum(map(Block.commands, blocks)) for blocks in (cls.ran, cls.skipped))
        print(f"{ran} commands ran, {skipped} were skipped", file=sys.stderr)

    def start(self, block, log):
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", block.text], cwd=self.tree, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def finish(self, block, name):
        with tempfile.TemporaryFile("w+") as log:
            process = self.start(block, log)
            try:
                status = process.wait(BLOCK_LIMIT_S)
            except subprocess.TimeoutExpired:
                status = f"over {BLOCK_LIMIT_S} s"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.seek(0)
            self.assertEqual(status, 0, f"{name}:\n{block.text}\n{log.read()}")

    def wait_until_it_serves(self, process, name):
        end = time.monotonic() + READY_LIMIT_S
        while time.monotonic() < end:
            self.assertIsNone(process.poll(), f"{name}: ended")
            done = subprocess.run(["curl", "-sf", f"http://127.0.0.1:{PORT}/readyz"],
                                  capture_output=True, check=False, timeout=10)
            if done.returncode == 0:
                return
            time.sleep(0.05)
        self.fail(f"{name}: not ready within {READY_LIMIT_S} s")

    def run_page(self, page):
        behind = []
        try:
            for block in blocks_of(page):
                if block.language not in ("sh", "console"):
                    continue
                name = f"{page}:{block.line}"
                if reason := block.reason():
                    print(f"{name}: not run: {reason}", file=sys.stderr)
                    self.skipped.append(block)
                    continue
                self.ran.append(block)
                if block.marks == BACKGROUND:
                    behind.append(self.start(block, subprocess.DEVNULL))
                    self.wait_until_it_serves(behind[-1], name)
                else:
                    self.finish(block, name)
        finally:
            for process in behind:
                os.killpg(process.pid, signal.SIGINT)
            for process in behind:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def test_every_page(self):
        with socket.socket() as probe:
            self.assertNotEqual(probe.connect_ex(("127.0.0.1", PORT)), 0,
                                f"somebody listens on the pages' port {PORT}")
        for page in pages():
            with self.subTest(page=str(page)):
                self.run_page(page)
        self.assertGreater(len(self.ran), 10)


if __name__ == "__main__":
    unittest.main()
