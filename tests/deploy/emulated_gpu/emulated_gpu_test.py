#!/usr/bin/env python3
# The program under mpirun with several workers on one GPU, which is emulated: the same digest for
# any number of workers, with CUDA graphs and without. EveryGpu runs with --long.
import json
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/deploy/app"))
from program_test import Case  # noqa: E402

REPLAY = ["replay", "--backend", "cuda/0", "--requests", "3", "--length-scale", "0.01",
          "--leaf-tokens", "64", "--heads", "2", "--layers", "1", "--kv-gib", "0.02",
          "--spread", "all"]


class SharedGpu(Case):
    def digest(self, *arguments, ranks):
        path = self.folder / "replay.json"
        self.run_well(*REPLAY, *arguments, "--json", path, ranks=ranks)
        report = json.loads(path.read_text())
        self.assertEqual(report["workers"], ranks)
        self.assertIn("cuda/Emulated", report["backend"])
        self.assertEqual(report["pages_in_use_at_end"], 0)
        return report["digest"]

    def test_the_digest_is_the_same_for_two_workers_and_without_graphs(self):
        expected = self.digest(ranks=1)
        self.assertEqual(self.digest(ranks=2), expected)
        self.assertEqual(self.digest("--disable-cuda-graph", ranks=2), expected)

    def test_info_names_the_device(self):
        self.assertIn("Emulated", self.run_well("info").stdout)


class EveryGpu(SharedGpu):
    def test_the_digest_is_the_same_for_four_workers(self):
        self.assertEqual(self.digest(ranks=4), self.digest(ranks=1))

    def test_golden_files_go_through_prefill_and_decode(self):
        for query in ("f32", "bf16"):
            with self.subTest(query=query):
                out = self.run_well("verify", "--backend", "cuda", "--query", query,
                                    ROOT / "tests/data/tiny.safetensors").stdout
                self.assertIn("verified on 1 worker", out)


if __name__ == "__main__":
    unittest.main()
