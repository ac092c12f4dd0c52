#!/usr/bin/env python3
# Each planted fault still applies to the sources, and the list has what it promises.
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import planted_faults  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

FAULT = {"name": "one", "kind": "other", "file": "a.cc", "text": "a < b", "replacement": "a <= b",
         "reverses": "", "test": "A.B"}


class Rules(unittest.TestCase):
    def problems(self, source, *faults):
        with tempfile.TemporaryDirectory() as root:
            pathlib.Path(root, "a.cc").write_text(source, encoding="utf-8")
            return planted_faults.problems_of(faults, root)

    def test_fault_that_applies(self):
        self.assertEqual(self.problems("if (a < b) {}", FAULT), [])

    def test_faults_that_do_not_apply(self):
        for case, (source, fault) in {
                "gone": ("if (b > a) {}", FAULT),
                "twice": ("if (a < b) {} while (a < b) {}", FAULT),
                "nothing changes": ("if (a < b) {}", {**FAULT, "replacement": "a < b"}),
                "no file": ("if (a < b) {}", {**FAULT, "file": "b.cc"})}.items():
            with self.subTest(case):
                found = self.problems(source, fault)
                self.assertEqual(len(found), 1, found)
                self.assertIn("has to occur once", found[0])

    def test_other_form_is_taken_where_the_first_does_not_apply(self):
        other = {"file": "a.cc", "text": "b > a", "replacement": "b >= a"}
        self.assertEqual(self.problems("if (b > a) {}", {**FAULT, "or": other}), [])

    def test_entries_that_are_wrong(self):
        for words, change in {"no kind": {"kind": "bug"},
                              "is no commit": {"reverses": "main"},
                              "no test": {"test": ""}}.items():
            with self.subTest(words):
                found = self.problems("if (a < b) {}", {**FAULT, **change})
                self.assertEqual(len(found), 1, found)
                self.assertIn(words, found[0])
        self.assertEqual(self.problems("if (a < b) {}", FAULT, FAULT), ["one: named twice"])


class List(unittest.TestCase):
    def test_every_fault_applies(self):
        self.assertEqual(planted_faults.problems_of(planted_faults.read_faults(), ROOT), [])


if __name__ == "__main__":
    unittest.main()
