#!/usr/bin/env python3
# What CI counts: what failed, what did not run, and what says itself that it skips.
import pathlib
import subprocess
import sys
import tempfile
import unittest

CASES = pathlib.Path(__file__).resolve().parents[2] / ".ci" / "cases.py"


def junit(**outcomes):
    tests = "".join(f'<testcase name="{name}" status="{status}"/>'
                    for name, status in outcomes.items())
    return f"<testsuite>{tests}</testsuite>"


class Cases(unittest.TestCase):
    def lines(self, report):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "report.xml")
            file.write_text(report)
            done = subprocess.run([sys.executable, CASES, file], capture_output=True, text=True,
                                  check=True, timeout=30)
        return done.stdout.splitlines()

    def test_one_run(self):
        self.assertEqual(self.lines(junit(A="run", B="fail")), ["1 1 0", "failed: B"])

    def test_what_did_not_run_is_skipped_only_where_the_test_said_so(self):
        report = "<testsuite>" + "".join(
            f'<testcase name="{name}" status="{status}">{inner}</testcase>' for name, status, inner in [
                ("Code", "notrun", '<skipped message="SKIP_RETURN_CODE=77"/>'),
                ("Words", "notrun", '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'),
                ("Missing", "notrun", '<skipped message="Unable to find executable"/>'),
                ("File", "notrun", '<skipped message="Required Files Missing"/>'),
                ("Silent", "notrun", ""),
                ("Disabled", "disabled", ""),
                ("Pytest", "", '<skipped type="pytest.skip" message="no such file"/>'),
                ("Googletest", "run", '<skipped message="no AMX"/>')]) + "</testsuite>"
        self.assertEqual(self.lines(report), ["0 4 4", "failed: Missing", "failed: File",
                                              "failed: Silent", "failed: Disabled"])

    def test_ctest_itself_about_a_missing_program(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "CTestTestfile.cmake").write_text(
                'add_test(Missing "/nowhere/program")\nadd_test(There "true")\n'
                'add_test(Skips "sh" "-c" "exit 77")\n'
                'set_tests_properties(Skips PROPERTIES SKIP_RETURN_CODE 77)\n')
            report = pathlib.Path(folder, "report.xml")
            subprocess.run(["ctest", "--test-dir", folder, "--output-junit", report], timeout=30,
                           capture_output=True, check=False)
            self.assertEqual(self.lines(report.read_text()), ["1 1 1", "failed: Missing"])


if __name__ == "__main__":
    unittest.main()
