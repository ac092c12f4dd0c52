#!/usr/bin/env python3
# Counts test cases: .ci/cases.py JUNIT [FOLDER]. JUNIT is ctest's or pytest's. Prints `PASSED FAILED SKIPPED`,
# then a line for every case that failed: `failed: NAME`. Where FOLDER holds what a test's program wrote about
# its own cases (googletest's XML, TEST.xml), these stand for the test.
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    """What did not run counts as failed, unless the test itself said that it skips: ctest writes "notrun" for a
    missing program too, with another message than SKIP_RETURN_CODE or SKIP_REGULAR_EXPRESSION_MATCHED."""
    skipped, status = case.find("skipped"), case.get("status")
    if case.find("failure") is not None or case.find("error") is not None or status == "fail":
        return "failed"
    if status in ("notrun", "disabled"):
        said = "" if skipped is None else skipped.get("message", "")
        return "skipped" if said.startswith("SKIP_") else "failed"
    return "passed" if skipped is None else "skipped"


def cases_of(test, folder):
    """(name, outcome) of what ran as this test of ctest."""
    own = [(test.get("name"), outcome(test))]
    try:
        suites = ElementTree.parse(folder / f"{test.get('name')}.xml").getroot()
    except (TypeError, OSError, ElementTree.ParseError):
        return own  # case by case anyway, or it ended before it could write
    cases = [(f"{case.get('classname')}.{case.get('name')}", outcome(case))
             for case in suites.iter("testcase")]
    # A program may fail with all its cases passed: a leak, found at its end.
    if own[0][1] == "failed" and all(result != "failed" for _, result in cases):
        cases += own
    return cases


def main():
    junit = ElementTree.parse(sys.argv[1]).getroot()
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    cases = [case for test in junit.iter("testcase") for case in cases_of(test, folder)]
    print(*(sum(result == wanted for _, result in cases)
            for wanted in ("passed", "failed", "skipped")))
    for name, result in cases:
        if result == "failed":
            print(f"failed: {name}")


if __name__ == "__main__":
    main()
