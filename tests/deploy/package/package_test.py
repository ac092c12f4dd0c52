#!/usr/bin/env python3
# An installed Tributary as another project sees it: staged from the build folder, found by
# find_package and by pkg-config, linked from outside the tree, run against a tier; and the Debian
# packages.
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "service"))
from tier import Tier  # noqa: E402

BUILD = pathlib.Path(os.environ["TRIBUTARY_BUILD"])
WORK = pathlib.Path(os.environ["TRIBUTARY_PACKAGE_WORK"])  # a folder of this test's own
STAGE = WORK / "stage" / "usr"
EXAMPLE = HERE / "example"


def run(*command, status=0, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120,
                          check=False, **more)
    if done.returncode != status:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def one(folder, pattern):
    found = sorted(folder.rglob(pattern))
    assert found, f"no {pattern} under {folder}"
    return found[0]


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)
        run("cmake", "--install", BUILD, "--prefix", STAGE)
        cls.library = one(STAGE, "libtributary.so")
        cls.environment = {**os.environ, "LD_LIBRARY_PATH": str(cls.library.parent)}

    def test_the_installed_program_runs(self):
        version = run(STAGE / "bin" / "tributary", "--version").split()[1]
        self.assertRegex(version, r"^\d+\.\d+\.\d+$")
        self.assertTrue(one(STAGE, f"libtributary.so.{version}").is_file())
        changes = one(STAGE, "changelog").read_text()
        self.assertIn(f"## {version}", changes)

    def test_shells_complete_commands_and_flags(self):
        script = one(STAGE / "share" / "bash-completion", "tributary")

        def completed(*words):
            return run("bash", "-c", f"source {script}; COMP_WORDS=(tributary \"$@\"); "
                       "COMP_CWORD=$#; _tributary; echo ${COMPREPLY[*]}", "-", *words).split()

        self.assertEqual(completed("rep"), ["replay"])
        self.assertEqual(completed("help", "ver"), ["verify"])
        self.assertEqual(completed("up", "--fail"), ["--failure-timeout-ms"])
        self.assertEqual(completed("up", "--exchange", "a"), ["auto", "all-gather", "all-to-all"])
        self.assertIn("#compdef tributary", one(STAGE / "share" / "zsh", "_tributary").read_text())

    def test_man_pages(self):
        if not shutil.which("help2man"):
            self.skipTest("NO help2man: no man page is made here")
        for name in ("tributary", "tributary-up", "tributary-replay"):
            page = one(STAGE / "share" / "man" / "man1", f"{name}.1").read_text()
            self.assertTrue(page.startswith(".\\\" DO NOT MODIFY THIS FILE"), page[:100])
        self.assertIn("\\-\\-baseline", page)

    def test_links_of_the_installed_pages_hold(self):
        pages = STAGE / "share" / "doc" / "tributary"
        self.assertTrue((pages / "README.md").is_file())
        found = sorted(pages.rglob("*.md"))
        self.assertGreater(len(found), 20)
        for page in found:
            for target in re.findall(r"\]\(([^)\s:]+)\)", page.read_text()):
                path = target.partition("#")[0]
                self.assertTrue((page.parent / path).exists(), f"{page}: {target}")
        self.assertFalse(list(pages.rglob("token")))
        self.assertTrue(json.loads(one(pages, "tributary.json").read_text())["panels"])

    def test_the_library_shows_its_interface_alone(self):
        symbols = run("nm", "-D", "-C", "--defined-only", self.library)
        names = [line.split(maxsplit=2)[2] for line in symbols.splitlines()]
        self.assertTrue(any("tributary::TierClient::admit(" in name for name in names))
        for name in names:
            self.assertRegex(
                name, r"tributary::(TierClient::|to_json|parse_sequence_handle|parse_admit_request"
                      r"|error_code_name|parse_spread_policy|spread_policy_name|row_format_name"
                      r"|RowLayout::|Prefix::|Error$|ItemsError$|PoolFullError)")

    def flags(self, *more):
        path = one(STAGE, "tributary.pc").parent
        return run("pkg-config", "--cflags", *more, "tributary",
                   env={**os.environ, "PKG_CONFIG_PATH": path}).split()

    def test_the_cpp_of_the_page_compiles(self):
        page = STAGE / "share" / "doc" / "tributary" / "deploy" / "guide" / "cpp.md"
        (block,) = re.findall(r"^```cpp\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        source = WORK / "page.cc"
        source.write_text("#include <tributary/client.h>\n"
                          "std::vector<std::byte> rows_of(int layer);\n"
                          "void page(const std::byte* query, const std::byte* row, float* output) {\n"
                          f"{block}}}\n")
        run("c++", "-std=c++20", "-fsyntax-only", source, *self.flags())

    def test_another_project_finds_links_and_runs_it(self):
        build = WORK / "example"
        run("cmake", "-S", EXAMPLE, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={STAGE}")
        run("cmake", "--build", build)
        flags = self.flags("--libs")
        by_hand = WORK / "by_hand"
        run("c++", "-std=c++20", EXAMPLE / "example.cc", "-o", by_hand, *flags)
        with Tier(pools=(2,), worker_flags=["--layers", "2"]) as tier:
            for program in (build / "example", by_hand):
                out = run(program, tier.url, env=self.environment)
                self.assertEqual(out, "decoded position 200 of 2 layers, output finite\n")
            tier.wait_all_free()
        # A program can catch the library's errors by their own type.
        done = subprocess.run([by_hand, "http://127.0.0.1:1"], capture_output=True, text=True,
                              timeout=120, check=False, env=self.environment)
        self.assertEqual(done.returncode, 2, done)
        self.assertRegex(done.stderr, "^example: (unavailable|deadline_exceeded): ")

    def test_debian_packages(self):
        if not shutil.which("dpkg-deb") or not shutil.which("dpkg-shlibdeps"):
            self.skipTest("NO dpkg-deb OR dpkg-shlibdeps: no Debian package is made here")
        packages = WORK / "packages"
        run("cpack", "-G", "DEB", "-B", packages, "--config", BUILD / "CPackConfig.cmake", cwd=WORK)
        holds = {"tributary": ["./usr/bin/tributary", "./usr/share/doc/tributary/changelog"],
                 "libtributary": ["libtributary.so.0.1", "./usr/share/doc/libtributary/copyright"],
                 "libtributary-dev": ["./usr/include/tributary/client.h", "TributaryConfig.cmake",
                                      "tributary.pc"]}
        for name, files in holds.items():
            package = one(packages, f"{name}_*.deb")
            contents = run("dpkg-deb", "--contents", package)
            for file in files:
                self.assertIn(file, contents)
            fields = run("dpkg-deb", "--info", package)
            self.assertRegex(fields, rf"(?m)^ Package: {re.escape(name)}$")
            self.assertRegex(fields, r"(?m)^ Version: \d+\.\d+\.\d+$")
            self.assertRegex(fields, r"(?m)^ Depends: .*" +
                             ("libucx|libucp|libssl3" if name != "libtributary-dev"
                              else r"libtributary \(="))


class Reference(unittest.TestCase):
    def test_every_public_member_is_documented(self):
        if not shutil.which("doxygen"):
            self.skipTest("NO doxygen: the reference is not made here")
        run("doxygen", BUILD / "deploy" / "package" / "Doxyfile", cwd=WORK.parent)
        pages = BUILD / "deploy" / "package" / "reference" / "html"
        self.assertIn("push_rows", one(pages, "classtributary_1_1TierClient.html").read_text())


if __name__ == "__main__":
    unittest.main()
