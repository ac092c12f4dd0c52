#!/usr/bin/env python3
# The monitoring of a tier: the scrape configuration, the alerts and the dashboard of deploy/,
# checked by promtool and queried on a real Prometheus that scrapes a real tier.
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "service"))
from tier import Service, Tier, wait_until  # noqa: E402
from program import LIMIT_S, ROOT, free_ports  # noqa: E402

PROMETHEUS = ROOT / "deploy" / "recipes" / "prometheus"
DASHBOARD = json.loads(subprocess.check_output(
    [sys.executable, ROOT / "deploy" / "recipes" / "grafana" / "dashboard.py"], timeout=60))
TOKEN = "0123456789abcdef0123456789abcdef"
# In place of Grafana's, which fit the picture's width.
VARIABLES = {"$__rate_interval": "15s", "$instance": ".*", "$pool": ".*"}


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries_of_dashboard():
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']}: {target['refId']}", target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        # An annotation without events has no samples: the metric that it counts must exist.
        yield annotation["name"], re.search(r"\((.*)\[", annotation["expr"])[1]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.search(r"\((.*),", variable["definition"])[1]


def substituted(query):
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


class Monitoring(unittest.TestCase):
    def promtool(self, *arguments):
        done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_promtool_finds_nothing(self):
        self.promtool("check", "rules", PROMETHEUS / "alerts.yml")
        with tempfile.TemporaryDirectory() as folder:
            for name in ("prometheus.yml", "alerts.yml"):
                pathlib.Path(folder, name).write_text((PROMETHEUS / name).read_text())
            pathlib.Path(folder, "token").write_text(TOKEN)
            self.promtool("check", "config", pathlib.Path(folder, "prometheus.yml"))

    def test_alerts_fire_and_stay_quiet(self):
        self.promtool("test", "rules", PROMETHEUS / "alerts_test.yml")
        cases = (PROMETHEUS / "alerts_test.yml").read_text()
        guide = (ROOT / "deploy" / "recipes" / "README.md").read_text()
        for name in re.findall(r"- alert: (\w+)", (PROMETHEUS / "alerts.yml").read_text()):
            self.assertIn(f"alertname: {name}, exp_alerts: []", cases, "a case where it is quiet")
            self.assertRegex(cases, rf"alertname: {name}\n +exp_alerts:\n", "one where it fires")
            self.assertIn(f"`{name}`", guide, "what it means and what to do")

    def test_dashboard_is_in_order(self):
        self.assertEqual([p["title"] for p in DASHBOARD["panels"] if p["type"] == "row"],
                         ["Is the tier healthy?", "Is it full?", "What is slow?",
                          "Which worker straggles?", "Is anything wrong in the numbers?"])
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        cells = set()
        for panel in DASHBOARD["panels"]:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            mine = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                    for y in range(place["y"], place["y"] + place["h"])}
            self.assertFalse(mine & cells, f"{panel['title']} lies over another")
            cells |= mine
        for panel in panels():
            self.assertTrue(panel["description"], panel["title"])


class PrometheusServer:
    """A real one with the configuration of deploy/, at a test's pace."""

    def __init__(self, folder, address):
        config = (PROMETHEUS / "prometheus.yml").read_text()
        self.assert_replaced(config, "127.0.0.1:7300", "interval: 5s")
        config = config.replace("127.0.0.1:7300", address)
        config = config.replace("interval: 5s", "interval: 1s")
        pathlib.Path(folder, "prometheus.yml").write_text(
            config.replace("global:\n", "global:\n  scrape_timeout: 1s\n"))
        pathlib.Path(folder, "alerts.yml").write_text((PROMETHEUS / "alerts.yml").read_text())
        pathlib.Path(folder, "token").write_text(TOKEN + "\n")
        self.port = free_ports(1)[0]
        self.log = open(pathlib.Path(folder, "log"), "w+")
        self.popen = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{self.port}",
             "--log.level=warn"], stdout=self.log, stderr=self.log)

    @staticmethod
    def assert_replaced(config, *texts):
        for text in texts:
            if text not in config:
                raise AssertionError(f"prometheus.yml has no '{text}' to replace")

    def get(self, path, **arguments):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?" + urllib.parse.urlencode(arguments)
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it is starting
                raise
            raise AssertionError(f"{arguments}: {error.read().decode()}") from error

    def numbers(self, query):
        """The samples of a query that are numbers."""
        try:
            samples = self.get("query", query=query)["result"]
        except urllib.error.URLError:  # it is starting
            return []
        return [value for value in (float(sample["value"][1]) for sample in samples)
                if not math.isnan(value)]

    def close(self):
        self.popen.terminate()
        self.popen.wait(LIMIT_S)
        self.log.close()


class LiveMonitoring(unittest.TestCase):
    def test_every_query_of_the_dashboard_and_the_alerts_returns_data(self):
        with tempfile.TemporaryDirectory() as folder:
            token_file = pathlib.Path(folder, "tier-token")
            token_file.write_text(TOKEN + "\n")
            flags = ["--token-file", token_file]
            with Tier(pools=(2,), token=TOKEN, control_flags=flags, worker_flags=flags) as tier:
                server = PrometheusServer(folder, tier.address)
                client = None
                try:
                    wait_until(lambda: server.numbers('up{job="tributary"} == 1'), "a scrape")
                    client = Service(["replay", "--service", tier.url, *flags, "--requests", "256",
                                      "--length-scale", "0.5"])
                    self.check_queries(server, client)
                finally:
                    server.close()
                    if client:
                        client.close()

    def check_queries(self, server, client):
        wanted = {name: substituted(query) for name, query in queries_of_dashboard()}
        alerts = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
        self.assertGreater(len(alerts), 10)
        for alert in alerts:
            self.assertEqual(alert.get("lastError", ""), "", alert["name"])
            server.numbers(alert["query"])  # fails if it is not a valid query
            # The query of a quiet alert returns nothing: the metrics in it must exist.
            for part in re.findall(r"\b(?:tributary_\w+|up)(?:\{[^}]*\})?", alert["query"]):
                wanted[f"{alert['name']}: {part}"] = part
        missing = dict(wanted)

        def all_there():
            if not client.alive():
                raise AssertionError(f"the client ended: {client.output()}")
            for name, query in list(missing.items()):
                if server.numbers(query):
                    del missing[name]
            return not missing
        try:
            wait_until(all_there, "data")
        except AssertionError as error:
            raise AssertionError(f"without data: {json.dumps(missing, indent=1)}") from error
        firing = [alert["name"] for group in server.get("rules")["groups"]
                  for alert in group["rules"] if alert["state"] == "firing"]
        self.assertEqual(firing, [], "a healthy tier")
        print(f"{len(wanted)} queries with data", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
