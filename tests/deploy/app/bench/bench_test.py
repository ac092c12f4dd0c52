#!/usr/bin/env python3
# `tributary bench` and `tributary plan` as an operator runs them: between threads, under mpirun,
# with what the first measures for the second.
import json
import pathlib
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from program import run  # noqa: E402

QUICK = ["--seconds", "0.001", "--steps", "1x64,2x300", "--leaf-tokens", "64"]


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.machine, self.plan = self.folder / "machine.json", self.folder / "plan.json"

    def well(self, *arguments, ranks=0):
        result = run(*arguments, ranks=ranks)
        self.assertEqual(result.status, 0, result)
        return result.stdout

    def refused(self, *arguments, words):
        result = run(*arguments)
        self.assertEqual(result.status, 2, result)
        for word in words:
            self.assertIn(str(word), result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result)

    def predicted(self, *arguments):
        text = self.well("plan", "--json", self.plan, *arguments)
        return json.loads(self.plan.read_text()), text

    def test_what_bench_measures_plan_reads(self):
        for ranks, workers in ((0, 1), (2, 2)):
            with self.subTest(workers=workers):
                text = self.well("bench", *QUICK, "--json", self.machine, ranks=ranks)
                for word in ("of peak", "attend", "exchange", "predicted us"):
                    self.assertIn(word, text)
                report = json.loads(self.machine.read_text())
                self.assertEqual(report["machine"]["workers"], workers)
                self.assertEqual(report["machine"]["source"], "measured")
                self.assertGreater(report["machine"]["threads"], 0)
                self.assertGreater(report["peak"]["read_gb_s"], 0)
                self.assertGreater(report["machine"]["costs"]["attend_gflop_us"], 0)
                self.assertEqual([(s["batch"], s["context"]) for s in report["steps"]],
                                 [(1, 64), (2, 300)])
                # As on the day it was measured, plan predicts what bench did.
                for step in report["steps"]:
                    plan, text = self.predicted(
                        "--machine", self.machine, "--shape", "deepseek-v2-lite", "--layers", "1",
                        "--workers-per-node", workers, "--batch", step["batch"],
                        "--context", step["context"], "--leaf-tokens", "64")
                    self.assertIn("measured", text)
                    same = [c for c in plan["candidates"]
                            if (c["spread"], c["exchange"]) == ("auto", step["exchange"])]
                    self.assertAlmostEqual(same[0]["step_us"], step["predicted_us"], places=6)
                if workers > 1:
                    self.assertGreater(report["machine"]["costs"]["all_to_all_message_us"], 0)
                    self.assertEqual(len(report["exchange"]), 10)
                else:
                    self.refused("plan", "--machine", self.machine, "--nodes", "2",
                                 words=[self.machine, "mpirun -np 2"])

    def test_plans_of_gpus_are_marked_as_not_measured(self):
        plan, text = self.predicted("--batch", "1", "--context", "1000000", "--target-ms", "1000")
        self.assertIn("NOT measured", text)
        self.assertIn("met", text)
        self.assertTrue(plan["target_met"])
        # One long sequence is shortest on all workers; many short ones each on one.
        self.assertNotEqual(plan["candidates"][0]["spread"], "single")
        plan, _ = self.predicted("--batch", "512", "--context", "2048", "--gpu", "h100")
        self.assertEqual(plan["candidates"][0]["workers_of_a_sequence"], 1)
        self.assertEqual(plan["weight_bytes"], 0)
        times = [c["step_us"] for c in plan["candidates"]]
        self.assertEqual(times, sorted(times))
        for candidate in plan["candidates"]:
            self.assertAlmostEqual(
                sum(candidate["phase_us"].values()) + candidate["other_us"],
                candidate["step_us"], places=3)

    def test_memory_decides_before_time(self):
        flags = ["--batch", "8", "--context", "65536", "--workers-per-node", "4"]
        plan, text = self.predicted(*flags, "--memory-gib", "1")
        self.assertIn("DOES NOT FIT", text)
        # 8 x 65,536 rows of 70,272 bytes: 34.3 GiB, in nodes of four workers of 1 GiB.
        self.assertIn("none fits: 36 workers at least", text)
        self.assertEqual((plan["fits"], plan["workers_needed"]), (False, 36))
        self.assertFalse(any(c["fits"] for c in plan["candidates"]))
        with_weights, _ = self.predicted(*flags, "--forward")
        # DeepSeek-V3: 187 million attention weights in a layer, 61 layers, bf16.
        self.assertAlmostEqual(with_weights["weight_bytes"], 187.1e6 * 61 * 2, delta=1e8)
        rows = 2 * 65536 * 576 * 2 * 61
        single = [c for c in plan["candidates"] if c["spread"] == "single"]
        self.assertEqual(single[0]["cache_bytes"], rows)

    def test_the_table_says_when_a_spread_pays(self):
        table, text = self.predicted("--table", "--shape", "glm-5", "--layers", "4",
                                     "--memory-gib", "16", "--topk", "0")
        self.assertIn("NOT measured", text)
        cells = {(cell["batch"], cell["context"]): cell for cell in table["cells"]}
        self.assertEqual(len(cells), 9 * 9)
        # Short sequences stay whole; a long one on an idle node is cut; what is too long for one
        # worker fits on several; what is too long for all does not fit.
        short, long = cells[256, 4096], cells[1, 1 << 20]
        self.assertEqual(short["whole_us"], short["best_us"])
        self.assertLess(long["best_us"], long["whole_us"])
        self.assertIn("whole", text)
        self.assertIn(f"{long['whole_us'] / long['best_us']:.2f}", text)
        crowded = [cell for cell in cells.values() if cell["best_us"] is None]
        self.assertIn(cells[256, 1 << 20], crowded)
        for cell in cells.values():
            if cell["whole_us"] is not None:
                self.assertLessEqual(cell["best_us"], cell["whole_us"])
        # Each cell is what a plan of it says.
        plan, _ = self.predicted("--batch", "8", "--context", "131072", "--shape", "glm-5",
                                 "--layers", "4", "--memory-gib", "16", "--topk", "0")
        self.assertEqual(plan["candidates"][0]["step_us"], cells[8, 131072]["best_us"])
        table, text = self.predicted("--table", "--shape", "glm-5", "--layers", "61",
                                     "--memory-gib", "40", "--topk", "0")
        self.assertIn("only so", text)

    def test_a_sequence_of_which_few_rows_are_read_is_cut_for_room_alone(self):
        table, _ = self.predicted("--table", "--shape", "glm-5", "--memory-gib", "80")
        cells = [cell for cell in table["cells"] if cell["whole_us"] is not None]
        self.assertGreater(len(cells), 40)
        for cell in cells:
            self.assertLess(cell["whole_us"], 1.05 * cell["best_us"], cell)
        flags = ["--shape", "glm-5", "--batch", "64", "--context", "131072"]
        sparse, dense = (self.predicted(*flags, "--topk", k)[0]["candidates"][0]["step_us"]
                         for k in ("2048", "0"))
        self.assertLess(3 * sparse, dense)

    def test_columns_of_a_long_step_stay_apart(self):
        plan, text = self.predicted("--gpu", "cpu", "--batch", "256", "--context", "131072")
        self.assertGreater(plan["candidates"][0]["step_us"], 1e7)
        rows = re.findall(r"^(?:auto|single|all), \S+ +(.*)$", text, re.MULTILINE)
        self.assertEqual(len(rows), len(plan["candidates"]), text)
        for row in rows:  # total, GiB, six phases, other, spread
            self.assertEqual(len([float(field) for field in row.split()]), 10, row)

    def test_what_makes_no_sense_is_refused(self):
        self.refused("plan", "--gpu", "abacus", words=["'abacus'", "h100, h200"])
        self.refused("plan", "--machine", self.machine, words=[self.machine, "cannot be read"])
        self.machine.write_text('{"machine": {"description": 1}}')
        self.refused("plan", "--machine", self.machine, words=[self.machine, "description"])
        self.refused("bench", "--steps", "1", words=["--steps", "8x4096"])
        self.refused("bench", "--steps", "0x5", words=["--steps", "'0'"])
        self.refused("bench", "--steps", "1x1", words=["--steps", "from 2 to 16777216"])


if __name__ == "__main__":
    unittest.main()
