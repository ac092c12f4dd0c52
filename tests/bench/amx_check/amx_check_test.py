#!/usr/bin/env python3
# bench/amx_check.sh ends in time.
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


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
