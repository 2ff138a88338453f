"""Every query of the Grafana dashboard returns data from a real cluster scraped by Prometheus."""

import json
import pathlib
import re
import subprocess
import unittest
import urllib.error
import urllib.parse
import urllib.request

from weft_cluster import BIN, Cluster, free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What NVIDIA's library tells; see worker/daemon/testing/fake_nvml.cc.
GPUS = """driver 580.65
count 1
0 name Test GPU
0 uuid GPU-11111111
0 memory_total 85899345920
0 memory_used 1073741824
0 utilization 50
0 power 300000
0 temperature 60
0 sm_clock 1980
0 memory_clock 2619
0 corrected 1
0 uncorrected 0
xid 0 31
"""
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))


def queries(dashboard):
    """(panel title, expression) with the variables filled in as Grafana would."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$run", ".*").replace("[1m]", "[20s]")


class Dashboard(unittest.TestCase):
    def test_panels_are_well_formed(self):
        for path in DASHBOARDS:
            dashboard = json.loads(path.read_text())
            self.assertIsNone(dashboard["id"])
            ids = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(ids), len(set(ids)))
            for panel in dashboard["panels"]:
                if panel["type"] != "row":
                    self.assertTrue(panel["description"], panel["title"])
                    self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], panel["title"])
                    self.assertEqual(panel["datasource"]["uid"], "${datasource}")

    def test_alert_rules_hold_and_fire_when_they_should(self):
        rules = ROOT / "deploy/prometheus/rules"
        for path in sorted(rules.glob("*.yaml")):
            kind = "test" if path.stem.endswith("_test") else "check"
            done = subprocess.run(["promtool", kind, "rules", path], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            if kind == "check":
                self.assertTrue((rules / f"{path.stem}_test.yaml").exists(), path)

    def test_alerts_are_on_metrics_that_the_page_has(self):
        page = (ROOT / "docs/metrics.md").read_text()
        for path in sorted((ROOT / "deploy/prometheus/rules").glob("*.yaml")):
            for name in re.findall(r"(?<![\w:])weft_[a-z_]+", path.read_text()):
                known = {name, re.sub("_(bucket|sum|count)$", "", name)}
                self.assertTrue(any(f"`{each}`" in page for each in known), f"{path.name}: {name}")

    def test_every_query_returns_data(self):
        cluster = Cluster()
        (cluster.folder / "gpus").write_text(GPUS)
        cluster.environment.update(WEFT_FAKE_NVML=str(cluster.folder / "gpus"),
                                   LD_LIBRARY_PATH=str(BIN / "fake_nvml"))
        self.addCleanup(cluster.close)
        self.assertEqual(cluster.up().code, 0)
        targets = [f"127.0.0.1:{port}" for port in cluster.metrics_ports()]
        for target in targets:
            text = urllib.request.urlopen(f"http://{target}/metrics", timeout=5).read()
            check = subprocess.run(["promtool", "check", "metrics"], input=text,
                                   capture_output=True)
            self.assertEqual(check.returncode, 0, target + check.stderr.decode())

        config = cluster.folder / "prometheus.yaml"
        config.write_text(json.dumps({
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "weft", "static_configs": [{"targets": targets}]}]}))
        port = free_port()
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={cluster.folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(prometheus.wait)
        self.addCleanup(prometheus.terminate)

        def query(expression):
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode(
                {"query": expression})
            try:
                with urllib.request.urlopen(url, timeout=5) as response:
                    return json.load(response)["data"]["result"]
            except urllib.error.URLError:
                return []

        job = cluster.submit(cluster.job("watched", steps=100000, eval_every_steps=20))
        pending = {(path.name, title, expression) for path in DASHBOARDS
                   for title, expression in queries(json.loads(path.read_text()))}

        def all_answered():
            for item in list(pending):
                if query(item[2]):
                    pending.discard(item)
            return not pending

        try:
            cluster.wait_for(all_answered, 60)
        except AssertionError:
            self.fail(f"panels without data: {sorted(pending)}")
        cluster.weft("cancel", job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
