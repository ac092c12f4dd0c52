#!/usr/bin/env python3
# Holds the repository to the rules of structure_rules.py, and the rules to planted violations.
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import structure_rules  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent

# A small tree that breaks no rule.
SOUND = {
    "core/CMakeLists.txt": "add_library(core base/error.cc)\n",
    "core/base/error.h": "// Errors.\n#pragma once\n#include <string>\n#include <fmt/format.h>\n",
    "core/base/error.cc": "#include \"core/base/error.h\"\n",
    "core/cache/pool.h": "// Pages.\n#pragma once\n#include \"core/base/error.h\"\n",
    "kernels/CMakeLists.txt": "add_library(k cpu/attend.cc)\n",
    "kernels/cpu/attend.h": "// Attention.\n#pragma once\n#include \"core/cache/pool.h\"\n",
    "kernels/cpu/attend-inl.h": "// Body.\n#ifdef HWY_TARGET_TOGGLE\n#endif\n"
                                "#include <hwy/highway.h>\n",
    "kernels/cpu/attend.cc": "// Attention.\n#include \"kernels/cpu/attend.h\"\n"
                             "#include \"kernels/cpu/attend-inl.h\"\n",
    "comm/CMakeLists.txt": "add_library(c mpi/world.cc)\n",
    "comm/mpi/world.h": "// MPI.\n#pragma once\n#include \"core/base/error.h\"\n",
    "comm/mpi/world.cc": "// MPI.\n#include <mpi.h>\n#include \"comm/mpi/world.h\"\n",
    "deploy/CMakeLists.txt": "add_executable(d main.cc)\n",
    "deploy/main.cc": "// Main.\n#include \"comm/mpi/world.h\"\n"
                      "#include \"kernels/cpu/attend.h\"\n",
    "deploy/service/CMakeLists.txt": "add_library(s worker/serve.cc)\n",
    "deploy/service/protocol/hello.h": "// Hello.\n#pragma once\n",
    "deploy/service/client/client.h": "// C.\n#pragma once\n"
                                      "#include \"deploy/service/protocol/hello.h\"\n",
    "deploy/service/worker/serve.cc": "// S.\n#include \"deploy/service/protocol/hello.h\"\n",
    "deploy/packages.txt": "systems: new old\n[build]\ng++ old:g++-9  # compiler\n[run]\n"
                           "old:mpi-bin\n",
    "deploy/setup.sh": "#!/bin/sh\n# Sets up.\n",
    "tests/comm/mpi/CMakeLists.txt": "add_executable(t world_test.cc ../../helper.cc)\n",
    "tests/comm/mpi/world_test.cc": "// Test.\n#include <mpi.h>\n#include <gtest/gtest.h>\n",
    "tests/fuzz/CMakeLists.txt": "function(f name)\n add_executable(${name} ${name}_fuzz.cc)\n",
    "tests/fuzz/trace_fuzz.cc": "// Fuzzes.\n",
    "tests/helper.cc": "// Shared.\n",
}


def packages(*lines):
    return {"deploy/packages.txt": "\n".join(("systems: new old", *lines, ""))}


# Name of the case: (files that change in the sound tree, words of the one finding).
PLANTED = {
    "core_includes_another_folder": (
        {"core/base/error.cc": "// E.\n#include \"kernels/cpu/attend.h\"\n"},
        "core/ must not know kernels/"),
    "kernels_include_comm": (
        {"kernels/cpu/attend.cc": "// A.\n#include \"comm/mpi/world.h\"\n"},
        "kernels/ must not know comm/"),
    "comm_includes_kernels": (
        {"comm/mpi/world.cc": "// W.\n#include \"kernels/cpu/attend.h\"\n"},
        "comm/ must not know kernels/"),
    "comm_includes_deploy": (
        {"deploy/main.h": "// M.\n#pragma once\n",
         "comm/mpi/world.cc": "// W.\n#include \"deploy/main.h\"\n"},
        "comm/ must not know deploy/"),
    "worker_includes_the_client": (
        {"deploy/service/worker/serve.cc": "// S.\n#include \"deploy/service/client/client.h\"\n"},
        "deploy/service/worker/ must not know deploy/service/client/"),
    "protocol_includes_the_runtime": (
        {"deploy/runtime/device.h": "// D.\n#pragma once\n",
         "deploy/service/protocol/hello.h": "// H.\n#pragma once\n"
                                            "#include \"deploy/runtime/device.h\"\n"},
        "deploy/service/protocol/ must not know deploy/runtime/"),
    "recipe_includes_the_service": (
        {"deploy/recipes/slurm/hook.h": "// H.\n#pragma once\n"
                                        "#include \"deploy/service/protocol/hello.h\"\n"},
        "deploy/recipes/slurm/ must not know deploy/service/protocol/"),
    "program_includes_a_test": (
        {"tests/helper.h": "// H.\n#pragma once\n",
         "deploy/main.cc": "// M.\n#include \"tests/helper.h\"\n"},
        "deploy/ must not know tests/"),
    "include_of_nothing": (
        {"core/base/error.cc": "// E.\n#include \"core/base/gone.h\"\n"}, "does not exist"),
    "include_beside": (
        {"core/base/error.cc": "// E.\n#include \"error.h\"\n"}, "paths from the root"),
    "ours_in_angles": (
        {"core/base/error.cc": "// E.\n#include <core/base/error.h>\n"}, "go in quotes"),
    "mpi_in_core": (
        {"core/base/error.cc": "// E.\n#include <mpi.h>\n"}, "belongs in comm/mpi"),
    "mpi_in_another_comm": (
        {"comm/CMakeLists.txt": "add_library(c mpi/world.cc local/t.cc)\n",
         "comm/local/t.cc": "// T.\n#  include <mpi.h>\n"}, "belongs in comm/mpi"),
    "onednn_in_deploy": (
        {"deploy/main.cc": "// M.\n#include <oneapi/dnnl/dnnl.hpp>\n"}, "belongs in kernels/cpu"),
    "asio_in_deploy": (
        {"deploy/main.cc": "// M.\n#include <boost/asio.hpp>\n"}, "belongs in comm/http"),
    "unknown_vendor": (
        {"deploy/main.cc": "// M.\n#include <zmq/zmq.hpp>\n"}, "does not know"),
    "public_header_shows_a_vendor": (
        {"comm/mpi/detail.h": "// D.\n#pragma once\n#include <mpi.h>\n",
         "comm/mpi/world.h": "// W.\n#pragma once\n#include \"comm/mpi/detail.h\"\n"},
        "shows <mpi.h>"),
    "public_header_with_a_build_flag": (
        {"core/cache/pool.h": "// P.\n#pragma once\n#ifdef WITH_MPI\n#endif\n"}, "build flag"),
    "cycle_in_core": (
        {"core/base/error.h": "// E.\n#pragma once\n#include \"core/cache/pool.h\"\n"},
        "cycle core/base -> core/cache -> core/base"),
    "cycle_three_levels_deep": (
        {"kernels/cuda/a/a.h": "// A.\n#pragma once\n#include \"kernels/cuda/b/b.h\"\n",
         "kernels/cuda/b/b.h": "// B.\n#pragma once\n#include \"kernels/cuda/a/a.h\"\n"},
        "cycle kernels/cuda/a -> kernels/cuda/b -> kernels/cuda/a"),
    "orphan_beside_a_family": ({"tests/fuzz/trace_test.cc": "// L.\n"}, "lists it"),
    "no_first_comment": ({"core/base/error.cc": "#include <string>\n"}, "start with a comment"),
    "no_first_comment_but_another_header": (
        {"core/base/error.cc": "#include \"core/base/other.h\"\n",
         "core/base/other.h": "// O.\n#pragma once\n"}, "start with a comment"),
    "script_without_comment": ({"deploy/setup.sh": "#!/bin/sh\nls\n"}, "start with a comment"),
    "empty_file": ({"tests/helper.cc": ""}, "start with a comment"),
    "too_long": ({"core/base/error.cc": "// E.\n" * 601}, "601 lines; at most 600"),
    "class_in_two_sources": (
        {"core/CMakeLists.txt": "add_library(core base/error.cc base/more.cc)\n",
         "core/base/more.h": "// M.\n#pragma once\nclass More {\n  int a() const;\n};\n",
         "core/base/more.cc": "// M.\n#include \"core/base/more.h\"\nint More::a() const {}\n",
         "core/base/error.cc": "// E.\nMore::More() {}\n"},
        "sources of More: core/base/error.cc, core/base/more.cc"),
    "too_many_public_functions": (
        {"core/cache/pool.h": "// P.\n#pragma once\nclass Pool final : public Base {\n public:\n"
                              "  Pool(int a);\n  ~Pool();\n  Pool(const Pool&) = delete;\n"
                              "  bool operator()(int a) const;\n  std::function<void()> f;\n"
                              + "".join(f"  int get_{i}(int a = {{}}) {{ return f(a); }}\n"
                                        for i in range(21))
                              + "\n private:\n  void own(int a);\n};\n"},
        "functions of Pool: core/cache/pool.h: 21 public ones; at most 20"),
    "two_classes_of_one_name": (
        {"core/cache/pool.h": "// P.\n#pragma once\nstruct Pool {\n};\n",
         "kernels/cpu/attend.h": "// A.\n#pragma once\nnamespace cpu {\nclass Pool {\n};\n}\n"},
        "class Pool: more than one"),
    "two_headers_of_one_name": (
        {"comm/mpi/pool.h": "// P.\n#pragma once\n"}, "header pool.h: more than one"),
    "no_pragma_once": ({"core/cache/pool.h": "// P.\n"}, "no #pragma once"),
    "orphan": ({"core/base/lost.cc": "// L.\n"}, "no CMakeLists.txt lists it"),
    "orphan_in_a_comment": (
        {"core/CMakeLists.txt": "add_library(core) # base/error.cc\n"},
        "no CMakeLists.txt lists it"),
    "environment_in_a_library": (
        {"comm/mpi/world.cc": "// W.\nauto* x = std::getenv(\"X\");\n"}, "calls getenv"),
    "hexadecimal_id": (
        {"core/base/error.cc": "// E.\nauto* x = \"sequence {:#x}: gone\";\n"}, "decimal"),
    "clock_in_a_decision": (
        {"core/base/error.cc": "// E.\nbool late() { return now >= Clock::now(); }\n"}, "clock in core/base/error.cc: 1"),
    "clock_behind_a_deadline": (
        {"core/base/error.cc": "// E.\nauto d = Deadline::after(seconds(f(1, 2)));\n"}, "clock in core/base/error.cc: 1"),
    "unknown_section": (packages("[biuld]", "g++"), "unknown section [biuld]"),
    "package_twice": (packages("[build]", "g++", "[run]", "g++"), "in line 3 already"),
    "package_twice_in_a_system": (
        packages("[build]", "g++ old:g++-9", "[run]", "mpi old:g++-9"), "in line 3 already"),
    "two_packages_in_a_line": (packages("[build]", "g++ cmake"), "more than one name"),
    "package_of_other_systems_last": (packages("[build]", "old:g++-9 g++"), "comes first"),
    "package_name": (packages("[build]", "G++"), "not a package name"),
    "package_of_no_system": (packages("[build]", "g++ odl:g++-9"), "odl is no system of new, old"),
    "package_without_section": (packages("g++"), "before the first section"),
    "no_systems": ({"deploy/packages.txt": "[build]\ng++\n"}, "no systems are named"),
}


def findings_of(files, exceptions=()):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return structure_rules.findings(root, exceptions)


class Rules(unittest.TestCase):
    def test_sound_tree_has_no_finding(self):
        self.assertEqual(findings_of(SOUND), [])

    def test_planted_violations_are_found(self):
        for case, (files, words) in PLANTED.items():
            with self.subTest(case):
                found = findings_of({**SOUND, **files})
                self.assertEqual(len(found), 1, found)
                self.assertIn(words, found[0])

    def test_exceptions_are_for_what_they_name_and_are_needed(self):
        planted = {**SOUND, "comm/mpi/pool.h": "// P.\n#pragma once\n"}
        self.assertEqual(findings_of(planted, {"header pool.h"}), [])
        found = findings_of(planted, {"header pool.h", "class Pool"})
        self.assertEqual(found, ["class Pool: an exception that is not needed"])

    def test_class_at_the_bound_is_no_finding(self):
        functions = "".join(f"  int get_{i}();\n" for i in range(20))
        text = f"// P.\n#pragma once\nstruct Pool {{\n{functions}}};\n"
        self.assertEqual(findings_of({**SOUND, "core/cache/pool.h": text}), [])

    def test_time_that_is_passed_in_is_no_finding(self):
        text = "// E.\n// Clock::now()\nauto d = Deadline::after(now, f(1));\nbool late = d.expired(now);\n"
        self.assertEqual(findings_of({**SOUND, "core/base/error.cc": text}), [])

    def test_commented_include_is_none(self):
        quiet = "// E.\n// #include <mpi.h>\n/*\n#include <mpi.h>\n*/\n"
        self.assertEqual(findings_of({**SOUND, "core/base/error.cc": quiet}), [])


class Repository(unittest.TestCase):
    def test_follows_the_rules(self):
        tree = structure_rules.Tree(ROOT)
        self.assertIn("core/base/error.h", tree.text, f"{ROOT} is not the repository")
        found = structure_rules.findings(ROOT, structure_rules.EXCEPTIONS)
        if found:
            self.fail(f"{len(found)} finding(s)\n" + "\n".join(found))


if __name__ == "__main__":
    unittest.main()
