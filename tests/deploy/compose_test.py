"""deploy/compose: services that agree with each other, with the image and with Prometheus."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy/compose"
BIN = pathlib.Path(os.environ["WEFT_BIN"])

# Keys of the Compose specification that the file may use; another one is a misspelling until
# someone has looked it up.
SERVICE = {"image", "restart", "read_only", "cap_drop", "security_opt", "tmpfs", "depends_on",
           "stop_grace_period", "ports", "volumes", "healthcheck", "hostname", "command",
           "environment"}
HEALTHCHECK = {"test", "interval", "timeout", "retries"}


class Compose(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.file = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
        cls.services = cls.file["services"]
        cls.ours = {name: service for name, service in cls.services.items()
                    if "WEFT_IMAGE" in service["image"] and "healthcheck" in service}
        cls.dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text().replace("\\\n", "")
        cls.default = json.loads(re.search(r"^CMD (\[.*\])", cls.dockerfile, re.M)[1])

    def command(self, service):
        """Program and flags, joined as --flag=value."""
        text = "\0".join(service.get("command", self.default))
        return re.sub(r"\0(?!--)", "=", text).split("\0")

    def flag(self, service, name):
        found = [argument.split("=", 1)[1] for argument in self.command(service)
                 if argument.startswith(f"{name}=")]
        self.assertEqual(len(found), 1, name)
        return found[0]

    def test_keys_are_those_of_the_specification(self):
        for key in self.file:
            self.assertTrue(key in {"name", "services", "volumes"} or key.startswith("x-"), key)
        for name, service in self.services.items():
            self.assertLessEqual(set(service), SERVICE, name)
            self.assertLessEqual(set(service.get("healthcheck", {})), HEALTHCHECK, name)
            for other, condition in service.get("depends_on", {}).items():
                if condition == {"condition": "service_completed_successfully"}:
                    self.assertEqual(self.services[other]["restart"], "no")
                else:
                    self.assertEqual(condition, {"condition": "service_healthy"})
                    self.assertIn("healthcheck", self.services[other])
        self.assertEqual(len(self.ours), 3)

    def test_the_overlay_for_gpus_changes_a_worker(self):
        overlay = yaml.safe_load((COMPOSE / "gpu.yaml").read_text())
        self.assertEqual(set(overlay), {"services"})
        for name, changes in overlay["services"].items():
            self.assertIn("weft-worker", self.command(self.ours[name]))
            self.assertEqual(set(changes), {"gpus", "shm_size"})
            self.assertEqual(changes["gpus"], "all")
        self.assertEqual(len(overlay["services"]), 1, "a GPU belongs to one worker")

    def test_our_services_may_write_to_their_volumes_only(self):
        for name, service in self.ours.items():
            with self.subTest(service=name):
                self.assertTrue(service["read_only"])
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
                self.assertIn("/tmp", service["tmpfs"])
                mounts = [volume.split(":")[-1] if not volume.endswith(":ro")
                          else volume.split(":")[-2] for volume in service["volumes"]]
                for flag in ("--data-dir", "--run-root"):
                    self.assertIn(self.flag(service, flag), mounts)

    def test_the_image_has_the_folders_of_volumes_for_its_user(self):
        # A new volume gets the owner of the folder that it covers; without one it belongs to root.
        made = re.search(r"install -d -o weft -g weft ([^&\n]+)", self.dockerfile)[1].split()
        for service in self.ours.values():
            for flag in ("--data-dir", "--run-root"):
                self.assertIn(self.flag(service, flag), made)

    def test_volumes_and_files_exist(self):
        used = set()
        for service in self.services.values():
            for volume in service["volumes"]:
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((COMPOSE / source).exists(), source)
                elif not source.startswith("$"):
                    used.add(source)
        self.assertEqual(used, set(self.file["volumes"]))
        runs = {volume for service in self.ours.values() for volume in service["volumes"]
                if volume.startswith("runs:")}
        self.assertEqual(len(runs), 1, "all share one folder of runs")

    def test_workers_find_the_coordinator_and_keep_their_names(self):
        help_text = subprocess.run([BIN / "weft-worker", "--help"], capture_output=True,
                                   text=True, check=True).stdout
        workers = {name: service for name, service in self.ours.items() if name != "coordinator"}
        for name, service in workers.items():
            host, port = self.flag(service, "--coordinator").split(":")
            self.assertEqual(self.flag(self.services[host], "--listen"), f"0.0.0.0:{port}")
            self.assertEqual(self.flag(service, "--run-root"),
                             self.flag(self.services[host], "--run-root"))
            for variable in service["environment"]:
                self.assertRegex(help_text, rf"Env:{variable}\b")
            self.assertIn(name, service["environment"].values())
            self.assertEqual(service["hostname"], name)
        folders = {volume.split(":")[0] for service in workers.values()
                   for volume in service["volumes"] if volume.endswith("/worker")}
        self.assertEqual(len(folders), len(workers), "each has a folder of its own")

    def test_the_certificates_that_are_made_are_those_that_are_read(self):
        certs = self.services["certs"]
        mount, = {volume for service in self.ours.values() for volume in service["volumes"]
                  if volume.startswith("certs:")}
        volume, folder, mode = mount.split(":")
        self.assertEqual(mode, "ro")
        self.assertEqual(certs["volumes"], [f"{volume}:{folder}"])
        self.assertRegex(self.dockerfile, rf"install -d -o weft -g weft [^&]*{folder}")
        shell, flags, script = certs["command"]
        with tempfile.TemporaryDirectory() as made:
            script = script.replace(folder, made)
            for _ in range(2):  # a restart keeps what is there
                subprocess.run([shell, flags, script], check=True, capture_output=True,
                               env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})
            read = {path for service in self.ours.values()
                    for path in [*service["environment"].values(),
                                 *re.findall(rf"{folder}/[\w.-]+", " ".join(self.command(service)))]
                    if path.startswith(folder)}
            self.assertEqual(len(read), 6)
            self.assertIn(self.flag(self.services["coordinator"], "--tls-crl"), read)
            for path in read:
                self.assertTrue((pathlib.Path(made) / pathlib.Path(path).name).exists(), path)

    def test_health_checks_are_commands_that_exist(self):
        for name, service in self.ours.items():
            with self.subTest(service=name):
                kind, program, *arguments = service["healthcheck"]["test"]
                self.assertEqual(kind, "CMD")
                self.assertTrue((BIN / program).exists())
                # Here nothing runs, so it must fail by that, not by its usage.
                done = subprocess.run([BIN / program, *arguments], capture_output=True, text=True,
                                      env={**os.environ, "WEFT_SERVER": "127.0.0.1:1"})
                self.assertIn(done.returncode, (1, 6), done.stderr)

    def test_prometheus_scrapes_all_of_them(self):
        path = COMPOSE / "prometheus.yaml"
        mounted = [v for v in self.services["prometheus"]["volumes"] if "prometheus.yaml" in v]
        self.assertEqual(mounted, ["./prometheus.yaml:/etc/prometheus/prometheus.yml:ro"])
        # The files of rules are where they are in the container.
        check = subprocess.run([shutil.which("promtool"), "check", "config", "--syntax-only", path],
                               capture_output=True, text=True)
        self.assertEqual(check.returncode, 0, check.stderr)
        rules = {path.name for path in (COMPOSE / "../prometheus/rules").glob("*.yaml")
                 if not path.stem.endswith("_test")}
        self.assertEqual({pathlib.Path(path).name
                          for path in yaml.safe_load(path.read_text())["rule_files"]}, rules)
        targets = {target for job in yaml.safe_load(path.read_text())["scrape_configs"]
                   for config in job["static_configs"] for target in config["targets"]}
        expected = {f"{name}:{self.flag(service, '--metrics-listen').split(':')[1]}"
                    for name, service in self.ours.items()}
        self.assertEqual(targets, expected)
        for service in self.ours.values():  # from another container, which has no TLS for it
            self.assertIn("--metrics-insecure", self.command(service))

    def test_grafana_finds_prometheus_and_the_dashboards(self):
        grafana = self.services["grafana"]
        home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        folders = {volume.split(":")[1]: COMPOSE / volume.split(":")[0]
                   for volume in grafana["volumes"]}
        inside = folders[os.path.dirname(home)]
        self.assertTrue((inside / os.path.basename(home)).exists())
        provisioning = folders["/etc/grafana/provisioning"]
        source, = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())[
            "datasources"]
        self.assertEqual(source["url"], "http://prometheus:9090")
        provider, = yaml.safe_load((provisioning / "dashboards/weft.yaml").read_text())["providers"]
        self.assertEqual(provider["options"]["path"], os.path.dirname(home))


if __name__ == "__main__":
    unittest.main(verbosity=2)
