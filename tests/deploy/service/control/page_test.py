# The status page in headless Chromium, against a real control plane with simulated pools.
# PAGE_PROGRAM: page_program.cc as built. PAGE_SCREENSHOTS: a folder for pictures, if wanted.
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    sys.exit("page_test.py: no selenium: apt-get install python3-selenium chromium-driver")

PATIENCE_S = 120  # ends a test that hangs


class Tier:
    """The program under the test's control: one line in, one line out."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [os.environ["PAGE_PROGRAM"], *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = f"http://{self.process.stdout.readline().strip()}/"

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if answer != "done":
            raise RuntimeError(f"{line}: {answer or 'the program has ended'}")

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE_S)
        self.process.stdout.close()


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        options = webdriver.ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     "--window-size=1280,900", "--no-proxy-server"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service("/usr/bin/chromedriver")
        cls.browser = webdriver.Chrome(service=service, options=options)
        cls.addClassCleanup(cls.browser.quit)
        cls.browser.set_page_load_timeout(PATIENCE_S)

    def open(self, *arguments):
        tier = Tier(*arguments)
        self.addCleanup(tier.close)
        self.browser.get(tier.url)
        return tier

    def wait(self, holds, what):
        WebDriverWait(self.browser, PATIENCE_S, poll_frequency=0.1).until(
            lambda _: holds(), message=f"waited for {what}")

    def text(self, name):
        return self.browser.find_element(By.ID, name).text

    def shown(self, name):
        return self.browser.find_element(By.ID, name).is_displayed()

    def pools(self):
        """Read by one script, because the page redraws itself every second."""
        return self.browser.execute_script(
            "return [...document.querySelectorAll('.pool')].map((p) => p.innerText)")

    def token_rates(self):
        found = [re.search(r"(\d+)\s+tokens/s", pool) for pool in self.pools()]
        return [int(match[1]) if match else 0 for match in found]

    def picture(self, name):
        if folder := os.environ.get("PAGE_SCREENSHOTS"):
            self.browser.save_screenshot(str(pathlib.Path(folder) / f"{name}.png"))

    def script_errors(self):
        return [entry for entry in self.browser.get_log("browser")
                if entry["source"] in ("javascript", "security", "console-api")]

    def test_follows_the_tier(self):
        tier = self.open()
        self.wait(lambda: self.shown("empty"), "the empty state")
        self.assertIn("tributary worker --control 127.0.0.1:", self.text("start-command"))
        self.picture("empty")

        tier.tell("pool decode-a")
        tier.tell("pool decode-b")
        for _ in range(3):
            tier.tell("admit 61440")  # 240 pages on each worker
        self.wait(lambda: len(self.pools()) == 2, "two pools")
        self.assertFalse(self.shown("empty"))
        self.wait(lambda: self.text("tier-state").endswith("serving"), "the state")
        self.wait(lambda: all(200 < rate < 600 for rate in self.token_rates()),
                  "the rate of tokens, 400/s")
        self.wait(lambda: all("query exchange" in pool for pool in self.pools()), "phases")
        self.wait(lambda: any("480" in pool for pool in self.pools()), "used pages")
        widths = self.browser.execute_script(
            "return [...document.querySelectorAll('.pool .used')].map((b) => b.style.width)")
        self.assertTrue(any(float(width.rstrip("%")) > 5 for width in widths), widths)
        # Nothing is wider than the window of a laptop.
        self.assertLessEqual(self.browser.execute_script(
            "return document.documentElement.scrollWidth"), 1280)
        self.picture("light")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.picture("dark")
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

        tier.tell("lose decode-b")
        self.wait(lambda: any("Lost" in pool for pool in self.pools()), "the loss of a pool")
        self.assertEqual(self.script_errors(), [])

        tier.tell("stop")
        self.wait(lambda: self.shown("error"), "the error")
        self.assertIn("cannot be reached", self.text("error"))
        self.assertEqual(len(self.pools()), 2)  # the last known state stays
        self.picture("unreachable")

    def test_asks_for_the_token(self):
        with tempfile.NamedTemporaryFile("w", suffix=".token") as file:
            file.write("0123456789abcdef\n")
            file.flush()
            self.open(file.name)
            self.wait(lambda: self.shown("sign-in"), "the form")
            field = self.browser.find_element(By.ID, "token")
            field.send_keys("wrong-wrong-wrong")
            field.submit()
            self.wait(lambda: "does not take" in self.text("error"), "the refusal")
            self.picture("token")
            field.send_keys("0123456789abcdef")
            field.submit()
            self.wait(lambda: not self.shown("sign-in") and self.shown("empty"), "the tier")
            self.browser.refresh()
            self.wait(lambda: self.shown("empty"), "the tier, without asking again")
            self.assertFalse(self.shown("sign-in"))


if __name__ == "__main__":
    unittest.main()
