#!/usr/bin/env python3
# bench/amx_check.sh ends in time, and its verdict (bench/amx_goals.py) can fail: figures that are
# made up, in the form in which bench/cpu_limits prints them.
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench"))
import amx_goals  # noqa: E402

# A machine that reaches every goal, most of them barely.
REACHED = """\
1 thread(s): at most 2700 GFLOP/s of bf16 products of tiles, 13.0 GB/s read

Instruction sets in turn, 1 thread(s), GFLOP/s; the table has AMX_BF16 (whatever):
                               AMX_BF16           AVX3   peak (tiles), read GB/s
128 heads, 1 x   4096 rows           1030            106   38% of 2700, 4.2
128 heads, 4 x   8192 rows           1001            100   37% of 2700, 4.1
128 heads, 1 x  32768 rows           1001            102   37% of 2700, 4.1
128 heads, 1 x 131072 rows            892             93   33% of 2700, 3.7
 16 heads, 1 x   4096 rows            331             55   12% of 2700, 10.9
 16 heads, 4 x   8192 rows            335             55   12% of 2700, 11.1
 16 heads, 1 x  32768 rows            335             55   12% of 2700, 11.1
 16 heads, 1 x 131072 rows            335             55   12% of 2700, 11.1
  4 heads, 1 x   4096 rows             90             55    3% of 2700, 11.8
  4 heads, 4 x   8192 rows             90             55    3% of 2700, 11.8
  4 heads, 1 x  32768 rows             90             55    3% of 2700, 11.8
  4 heads, 1 x 131072 rows             90             55    3% of 2700, 11.8
  1 heads, 1 x   4096 rows             23             20    1% of 2700, 11.9
  1 heads, 4 x   8192 rows             23             20    1% of 2700, 11.9
  1 heads, 1 x  32768 rows             23             20    1% of 2700, 11.9
  1 heads, 1 x 131072 rows             23             20    1% of 2700, 11.9

PyTorch, bf16 through oneDNN, the better of two forms; 1 thread(s), wall time:
128 heads, 1 x   4096 rows:   1030 GFLOP/s, peer    358: 2.88 x faster  (5 rounds, 0 dropped)
128 heads, 4 x   8192 rows:   1001 GFLOP/s, peer    299: 3.35 x faster  (5 rounds, 0 dropped)
128 heads, 1 x  32768 rows:   1001 GFLOP/s, peer    318: 3.15 x faster  (5 rounds, 0 dropped)

SGLang's algorithm on oneDNN's brgemm, all heads in one block; 1 thread(s), wall time:
128 heads, 1 x   4096 rows:   1030 GFLOP/s, peer    511: 2.02 x faster  (5 rounds, 0 dropped)
128 heads, 4 x   8192 rows:   1001 GFLOP/s, peer    434: 2.31 x faster  (5 rounds, 0 dropped)
128 heads, 1 x  32768 rows:   1001 GFLOP/s, peer    468: 2.14 x faster  (5 rounds, 0 dropped)

2 thread(s): at most 5300 GFLOP/s of bf16 products of tiles, 25.0 GB/s read
128 heads,   4096 rows, s_q 1                    600 us   1900 GFLOP/s
                                           1.82 x one thread
128 heads,   4096 rows, s_q 2                    600 us   1900 GFLOP/s
                                           1.10 x one thread
 16 heads,   4096 rows, s_q 1                    600 us   1900 GFLOP/s
                                           1.86 x one thread

AMX_BF16           60.0 ms, 1.00 x the first  (5 rounds, 0 dropped)
AVX3_BF16         242.0 ms, 4.03 x the first  (5 rounds, 0 dropped)
AVX3              200.0 ms, 3.33 x the first  (5 rounds, 0 dropped)

q_b    24576 x  1536, batch 16, bf16    7000 us   10.1 GB/s,  78% of read 13.0; 1.90 x fp32  (5 rounds)
q_b    24576 x  1536, batch 16, FP8     4000 us   10.0 GB/s,  77% of read 13.0; 3.40 x fp32  (5 rounds)
q_b    24576 x  1536, batch  1, FP8     4000 us   10.0 GB/s,   7% of read 13.0; 3.40 x fp32  (5 rounds)
o_proj  7168 x 16384, batch 16, bf16    7000 us   10.1 GB/s,  76% of read 13.0; 1.90 x fp32  (5 rounds)
o_proj  7168 x 16384, batch 16, FP8     4000 us   10.0 GB/s,  75% of read 13.0; 3.40 x fp32  (5 rounds)

append                            3.6 us   41.0 GB/s,   38% of a copy's 106.8,  130% of read
merge                          1380.2 us   36.5 GB/s,  145% of a copy's  25.1,   91% of read
RMSNorm, width 1536              21.7 us   36.2 GB/s,   40% of a copy's  89.9,  115% of read
RMSNorm, width 512                7.1 us   36.8 GB/s,   33% of a copy's 111.4,  117% of read
RoPE, 128 heads                 186.8 us   22.5 GB/s,   30% of a copy's  75.1,   90% of read
"""


def missed(before, after):
    """The goals that are missed where `before` is replaced by `after` in its first place."""
    assert before in REACHED, before
    lines, count = amx_goals.judge(REACHED.replace(before, after, 1))
    named = [line for line in lines if line.startswith("MISSED")]
    assert len(named) == count
    return named


class Verdict(unittest.TestCase):
    def test_all_reached(self):
        lines, count = amx_goals.judge(REACHED)
        self.assertEqual(count, 0, lines)
        self.assertEqual(sum(line.startswith("reached") for line in lines), 28)

    def test_each_figure_counts(self):
        for before, after, goal in [
                ("1030            106", "990            106", "128 heads, 4k: 990 GFLOP/s"),
                ("1001            100", "998            100", "128 heads, 4 x 8k"),
                ("1001            102", "998            102", "128 heads, 32k"),
                ("892             93", "890             93", "128 heads, 131k"),
                ("peer    299: 3.35 x", "peer    600: 1.67 x", "2 x PyTorch binds"),
                ("peer    468: 2.14 x", "peer    520: 1.92 x", "2 x brgemm binds"),
                ("1.82 x one", "1.79 x one", "92% of two threads' peak binds"),
                ("1.86 x one", "1.80 x one", "two threads, 16 heads"),
                ("331             55   12% of 2700, 10.9", "300             55   12% of 2700, 10.0",
                 "16 heads, 4k"),
                ("90             55    3% of 2700, 11.8", "90             55    3% of 2700, 11.6",
                 "4 heads, 4k: 11.6 GB/s, goal 11.7 (90% of read binds)"),
                ("23             20    1% of 2700, 11.9", "23             20    1% of 2700, 1.9",
                 "MISSED   1 heads, 4k"),
                (" 78% of read 13.0", " 74% of read 13.0", "q_b with bf16 weights"),
                (" 77% of read 13.0", " 74% of read 13.0", "q_b with FP8 weights"),
                (" 76% of read 13.0", " 74% of read 13.0", "o_proj with bf16 weights"),
                (" 75% of read 13.0", " 74% of read 13.0", "o_proj with FP8 weights"),
                ("242.0 ms", "239.0 ms", "a step of a layer: 3.98 x"),
                ("130% of read", "89% of read", "append"), (" 91% of read", " 89% of read", "merge"),
                ("115% of read", "89% of read", "RMSNorm, width 1536"),
                ("117% of read", "89% of read", "RMSNorm, width 512"),
                (" 90% of read", " 89% of read", "RoPE")]:
            with self.subTest(goal=goal):
                lines = missed(before, after)
                self.assertEqual(len(lines), 1, lines)
                self.assertIn(goal, lines[0])

    def test_the_lesser_bound_binds(self):
        lines, _ = amx_goals.judge(REACHED)
        self.assertIn("reached  128 heads, 4k: 1030 GFLOP/s, goal 1020 (2 x brgemm binds)", lines)
        self.assertIn("reached  128 heads, 131k: 892 GFLOP/s, goal 891 (33% of the peak binds)",
                      lines)

    def test_a_missing_figure_is_a_missed_goal(self):
        lines, count = amx_goals.judge("")
        self.assertEqual(count, 28, lines)
        # Disturbed, or over its time.
        lines = missed("128 heads, 1 x  32768 rows           1001            102   37% of 2700, 4.1",
                       "128 heads, 1 x  32768 rows: no round undisturbed of 9")
        self.assertEqual(lines, ["MISSED   128 heads, 32k: no figure"])
        lines = missed("128 heads, 4 x   8192 rows:   1001 GFLOP/s, peer    299: 3.35 x faster",
                       "128 heads, 4 x   8192 rows: all 20 rounds were disturbed")
        self.assertEqual(lines, ["MISSED   128 heads, 4 x 8k: 1001 GFLOP/s, nothing to compare with"])
        self.assertEqual(len(missed("AVX3_BF16         242.0", "AVX2              242.0")), 1)

    def test_the_status_says_so(self):
        program = [sys.executable, str(ROOT / "bench/amx_goals.py")]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "result.txt"
            for text, status, said in [(REACHED, 0, "28 of 28 goals reached"),
                                       (REACHED.replace("242.0", "200.0"), 1, "27 of 28")]:
                file.write_text(text, encoding="utf-8")
                done = subprocess.run([*program, file], capture_output=True, text=True, timeout=30,
                                      check=False)
                self.assertEqual(done.returncode, status)
                self.assertIn(said, done.stdout)
        done = subprocess.run(program, capture_output=True, timeout=30, check=False)
        self.assertEqual(done.returncode, 2)


class Budget(unittest.TestCase):
    def test_the_limits_end_within_ten_minutes(self):
        script = ROOT / "bench/amx_check.sh"
        done = subprocess.run([script, "--budget"], capture_output=True, text=True, timeout=30,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        parts = dict(line.split() for line in done.stdout.splitlines()[:-1])
        total = sum(int(seconds) + 1 for seconds in parts.values())
        self.assertIn(f"at most {total} s", done.stdout)
        self.assertLess(total, 600)
        # Each part has a limit, and each limit a part.
        text = script.read_text(encoding="utf-8")
        for part in parts:
            self.assertTrue(f"limits {part} " in text or f'check {part} "${{limit_s[{part}]}}"' in text,
                            part)
        used = sum(line.startswith(("    limits ", "    check ")) for line in text.splitlines())
        self.assertEqual(used, len(parts))


if __name__ == "__main__":
    unittest.main()
