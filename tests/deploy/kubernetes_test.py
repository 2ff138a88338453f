"""deploy/kubernetes: objects that a cluster accepts, and that agree with each other, with the image
and with what the programs really serve."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import grpc
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = ROOT / "deploy/kubernetes/base"
GPU = ROOT / "deploy/kubernetes/gpu"
BIN = pathlib.Path(os.environ["WEFT_BIN"])

# Fields that the files may use, as the API has them: {} anything of that kind, [..] a list. What is
# not here is a misspelling until someone has looked it up.
METADATA = {"name": str, "namespace": str, "labels": {}, "annotations": {}}
SELECTOR = {"matchLabels": {}}
PROBE = {"grpc": {"port": int}, "httpGet": {"path": str, "port": object},
         "exec": {"command": [str]}, "periodSeconds": int, "timeoutSeconds": int,
         "failureThreshold": int}
CLAIM = {"accessModes": [str], "resources": {"requests": {"storage": str}}}
CONTAINER = {
    "name": str, "image": str, "args": [str],
    "env": [{"name": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "ports": [{"name": str, "containerPort": int}],
    "securityContext": {"allowPrivilegeEscalation": bool, "readOnlyRootFilesystem": bool,
                        "capabilities": {"drop": [str]}},
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"memory": str, "nvidia.com/gpu": str}},
    "startupProbe": PROBE, "readinessProbe": PROBE, "livenessProbe": PROBE,
    "volumeMounts": [{"name": str, "mountPath": str}]}
POD = {"metadata": METADATA, "spec": {
    "automountServiceAccountToken": bool, "terminationGracePeriodSeconds": int, "nodeSelector": {},
    "tolerations": [{"key": str, "operator": str, "effect": str}],
    "securityContext": {"runAsNonRoot": bool, "runAsUser": int, "runAsGroup": int, "fsGroup": int,
                        "seccompProfile": {"type": str}},
    "containers": [CONTAINER],
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str},
                 "secret": {"secretName": str, "defaultMode": int},
                 "emptyDir": {"medium": str, "sizeLimit": str}}]}}
POLICY_PORTS = [{"port": object, "protocol": str}]
KINDS = {
    ("v1", "Namespace"): {},
    ("v1", "Service"): {"selector": {}, "ports": [{"name": str, "port": int, "targetPort": str}]},
    ("v1", "PersistentVolumeClaim"): CLAIM,
    ("apps/v1", "StatefulSet"): {
        "serviceName": str, "replicas": int, "selector": SELECTOR, "template": POD,
        "volumeClaimTemplates": [{"metadata": METADATA, "spec": CLAIM}]},
    ("apps/v1", "DaemonSet"): {
        "selector": SELECTOR, "template": POD,
        "updateStrategy": {"type": str, "rollingUpdate": {"maxUnavailable": int}}},
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "podSelector": SELECTOR, "policyTypes": [str],
        "ingress": [{"from": [{"podSelector": SELECTOR}], "ports": POLICY_PORTS}]},
}
QUANTITY = re.compile(r"[0-9]+(m|Ki|Mi|Gi|Ti)?$")


def check(value, shape, where):
    """Fails unless every field of `value` is in `shape`, with its type."""
    if isinstance(shape, list):
        assert isinstance(value, list), f"{where} must be a list"
        for i, item in enumerate(value):
            check(item, shape[0], f"{where}[{i}]")
    elif isinstance(shape, dict):
        assert isinstance(value, dict), f"{where} must be a mapping"
        for key, item in value.items():
            if shape:
                assert key in shape, f"{where}.{key} is not a known field"
                check(item, shape[key], f"{where}.{key}")
            else:
                assert isinstance(item, str), f"{where}.{key} must be a string"
    else:
        assert isinstance(value, shape), f"{where} must be {shape.__name__}, not {value!r}"


def merge(target, patch):
    """A strategic merge: mappings by key, lists of named things by name, other lists as a whole."""
    for key, value in patch.items():
        if isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        elif isinstance(value, list) and key in ("containers", "volumes", "volumeMounts"):
            name = "mountPath" if key == "volumeMounts" else "name"
            for item in value:
                same = [other for other in target.setdefault(key, []) if other[name] == item[name]]
                if same:
                    merge(same[0], item)
                else:
                    target[key].append(item)
        else:
            target[key] = value


def build(folder=BASE):
    """What `kubectl kustomize` makes of a folder: its files and those of its base, their namespace
    and images set, its patches applied."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(kustomization) - {"apiVersion", "kind", "namespace", "resources", "images",
                                    "patches"}
    assert not unknown, f"this test does not build {unknown}"
    images = {image["name"]: f"{image['newName']}:{image['newTag']}"
              for image in kustomization.get("images", [])}
    objects = []
    for name in kustomization["resources"]:
        if (folder / name).is_dir():
            objects += build((folder / name).resolve())
            continue
        for item in yaml.safe_load_all((folder / name).read_text()):
            if item["kind"] != "Namespace":
                item["metadata"]["namespace"] = kustomization["namespace"]
            for container in pod_of(item).get("spec", {}).get("containers", []):
                container["image"] = images[container["image"]]
            objects.append(item)
    for patch in kustomization.get("patches", []):
        target, = (item for item in objects if item["kind"] == patch["target"]["kind"]
                   and item["metadata"]["name"] == patch["target"]["name"])
        merge(target, yaml.safe_load((folder / patch["path"]).read_text()))
    return objects


def unordered(value):
    """The same with lists of mappings in one order: a merge may put what is new first or last."""
    if isinstance(value, dict):
        return {key: unordered(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        items = [unordered(item) for item in value]
        return sorted(items, key=str) if all(isinstance(i, dict) for i in items) else items
    return value


def pod_of(item):
    return item.get("spec", {}).get("template", {})


def matches(selector, labels):
    return selector.items() <= labels.items()


def megabytes(quantity):
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024, "Ti": 1 << 20}[quantity[-2:]]


class Objects(unittest.TestCase):
    folder = BASE

    @classmethod
    def setUpClass(cls):
        cls.objects = build(cls.folder)
        cls.workloads = [item for item in cls.objects if pod_of(item)]
        cls.pods = [pod_of(item) for item in cls.workloads]

    def of(self, kind):
        return [item for item in self.objects if item["kind"] == kind]

    def containers(self):
        for pod in self.pods:
            for container in pod["spec"]["containers"]:
                yield pod, container

    def pods_for(self, selector):
        found = [pod for pod in self.pods if matches(selector, pod["metadata"]["labels"])]
        self.assertTrue(found, f"no pod has {selector}")
        return found

    def port_names(self, pod):
        return {port["name"] for c in pod["spec"]["containers"] for port in c["ports"]}

    def test_the_files_are_all_used_and_kubectl_builds_the_same(self):
        kustomization = yaml.safe_load((self.folder / "kustomization.yaml").read_text())
        listed = {name for name in kustomization["resources"] if name.endswith(".yaml")}
        listed |= {patch["path"] for patch in kustomization.get("patches", [])}
        present = {path.name for path in self.folder.glob("*.yaml")} - {"kustomization.yaml"}
        self.assertEqual(listed, present)
        if shutil.which("kubectl"):  # not in all of Debian's releases in a usable version
            built = subprocess.run(["kubectl", "kustomize", self.folder], capture_output=True, text=True)
            self.assertEqual(built.returncode, 0, built.stderr)

            def by_name(objects):
                return sorted(map(unordered, objects),
                              key=lambda o: (o["kind"], o["metadata"]["name"]))
            self.assertEqual(by_name(yaml.safe_load_all(built.stdout)), by_name(self.objects))

    def test_fields_are_those_of_the_api(self):
        seen = set()
        for item in self.objects:
            identity = (item["apiVersion"], item["kind"])
            name = f"{item['kind']}/{item['metadata']['name']}"
            self.assertIn(identity, KINDS)
            self.assertNotIn(name, seen)
            seen.add(name)
            self.assertLessEqual(set(item), {"apiVersion", "kind", "metadata", "spec"})
            check(item["metadata"], METADATA, f"{name}.metadata")
            check(item.get("spec", {}), KINDS[identity], f"{name}.spec")
            self.assertEqual(item["metadata"]["labels"]["app.kubernetes.io/part-of"], "weft", name)

    def test_pods_run_as_the_user_of_the_image_and_may_nothing_else(self):
        dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text()
        user, group = map(int, re.search(r"^USER (\d+):(\d+)$", dockerfile, re.M).groups())
        for pod, container in self.containers():
            context = pod["spec"]["securityContext"]
            self.assertTrue(context["runAsNonRoot"])
            self.assertEqual((context["runAsUser"], context["runAsGroup"], context["fsGroup"]),
                             (user, group, group))
            self.assertEqual(context["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertFalse(pod["spec"]["automountServiceAccountToken"])
            self.assertEqual(container["securityContext"], {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]}})
        namespace, = self.of("Namespace")
        self.assertEqual(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
                         "restricted")

    def test_resources_are_asked_for(self):
        for _, container in self.containers():
            requests, limits = (container["resources"][k] for k in ("requests", "limits"))
            for quantity in [*requests.values(), *limits.values()]:
                self.assertRegex(quantity, QUANTITY)
            self.assertIn("cpu", requests)
            self.assertLessEqual(megabytes(requests["memory"]), megabytes(limits["memory"]))

    def test_folders_of_the_flags_are_mounted_and_every_volume_exists(self):
        claims = {item["metadata"]["name"] for item in self.of("PersistentVolumeClaim")}
        for item, pod in zip(self.workloads, self.pods):
            volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
            templates = {t["metadata"]["name"] for t in item["spec"].get("volumeClaimTemplates", [])}
            for volume in volumes.values():
                if "persistentVolumeClaim" in volume:
                    self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims)
            used = set()
            for container in pod["spec"]["containers"]:
                mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
                used |= set(mounts.values())
                self.assertIn("/tmp", mounts)
                for flag in ("--data-dir", "--run-root"):
                    path = next(a.split("=")[1] for a in container["args"] if a.startswith(flag))
                    self.assertIn(path, mounts)
            self.assertEqual(used, set(volumes) | templates)
        runs = {next(v for v in pod["spec"]["volumes"] if v["name"] == "runs")
                ["persistentVolumeClaim"]["claimName"] for pod in self.pods}
        self.assertEqual(len(runs), 1, "all share one folder of runs")
        shared = next(c for c in self.of("PersistentVolumeClaim")
                      if c["metadata"]["name"] == runs.pop())
        self.assertEqual(shared["spec"]["accessModes"], ["ReadWriteMany"])

    def test_selectors_find_their_pods_and_ports_have_names(self):
        for item, pod in zip(self.workloads, self.pods):
            selector = item["spec"]["selector"]["matchLabels"]
            self.assertTrue(matches(selector, pod["metadata"]["labels"]))
            self.assertEqual(self.pods_for(selector), [pod])
        services = {s["metadata"]["name"]: s for s in self.of("Service")}
        for service in services.values():
            pod, = self.pods_for(service["spec"]["selector"])
            for port in service["spec"]["ports"]:
                self.assertIn(port["targetPort"], self.port_names(pod))
        for item in self.of("StatefulSet"):
            self.assertIn(item["spec"]["serviceName"], services)
        for policy in self.of("NetworkPolicy"):
            pods = self.pods_for(policy["spec"]["podSelector"].get("matchLabels", {}))
            for rule in policy["spec"].get("ingress", []):
                for port in rule.get("ports", []):
                    self.assertIn(port["port"], self.port_names(pods[0]))
                for peer in rule.get("from", []):
                    self.pods_for(peer["podSelector"]["matchLabels"])
        for _, container in self.containers():
            for argument in container["args"]:
                if argument.startswith("--coordinator="):
                    host, port = argument.split("=")[1].split(":")
                    self.assertIn(int(port), [p["port"] for p in services[host]["spec"]["ports"]])

    def test_a_worker_may_drain_before_its_pod_is_killed(self):
        for pod, container in self.containers():
            for argument in container["args"]:
                if argument.startswith("--drain-seconds="):
                    drain = float(argument.split("=")[1])
                    self.assertGreater(pod["spec"]["terminationGracePeriodSeconds"], drain + 10)
                    return
        self.fail("no worker is told how long it may drain")

    def test_the_secret_of_the_docs_holds_what_the_coordinator_reads(self):
        text = (ROOT / "docs/security.md").read_text()
        secret = re.search(r"create secret generic weft-coordinator-tls (.*)", text)[1]
        coordinator, = (c for _, c in self.containers() if c["name"] == "coordinator")
        read = {pathlib.Path(a.split("=")[1]).name for a in coordinator["args"]
                if "=/etc/weft/tls/" in a}
        self.assertEqual(set(re.findall(r"--from-file=ca/(\S+)", secret)), read)
        self.assertIn("ca-crl.pem", read)

    def test_prometheus_gets_the_port_of_metrics(self):
        for pod, container in self.containers():
            metrics = next(p for p in container["ports"] if p["name"] == "metrics")
            self.assertEqual(pod["metadata"]["annotations"]["prometheus.io/port"],
                             str(metrics["containerPort"]))
            # Probes and Prometheus come from outside of the pod, without TLS.
            self.assertIn("--metrics-insecure", container["args"])


class GpuObjects(Objects):
    """The same holds of the overlay for GPUs, and:"""
    folder = GPU

    def test_the_worker_has_the_gpus_of_its_node(self):
        worker, = self.of("DaemonSet")
        pod = pod_of(worker)["spec"]
        container, = pod["containers"]
        limits = container["resources"]["limits"]
        self.assertEqual(pod["nodeSelector"],
                         {"weft/worker": "true", "weft/gpus": limits["nvidia.com/gpu"]})
        self.assertEqual([t["key"] for t in pod["tolerations"]], ["nvidia.com/gpu"])
        self.assertIn("/dev/shm", [m["mountPath"] for m in container["volumeMounts"]])
        self.assertGreaterEqual(container["startupProbe"]["failureThreshold"] *
                                container["startupProbe"]["periodSeconds"],
                                60 + 10 * int(limits["nvidia.com/gpu"]))


class Probes(unittest.TestCase):
    """Starts the programs with the very arguments of the pods, ports and folders replaced."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-k8s-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.ports = {}
        # The secrets, made as docs/security.md says.
        for command in (["init"], ["issue", "server", "weft-coordinator", "127.0.0.1"],
                        ["issue", "worker", "node-7"]):
            subprocess.run([BIN / "weft", "certs", command[0], self.folder / "tls", *command[1:]],
                           check=True, capture_output=True)
        entry = subprocess.run([BIN / "weft", "auth", "token", "ann", "--role", "admin", "--file",
                                self.folder / "token"], check=True, capture_output=True, text=True)
        (self.folder / "people").mkdir()
        people = self.folder / "people/people.yaml"
        people.write_text("people:\n" + entry.stdout)
        people.chmod(0o600)

    def here(self, text):
        """An argument as it must be on this machine."""
        text = re.sub("/(var/lib|etc)/weft", str(self.folder), text)
        text = text.replace("$(WEFT_WORKER_WORKER_ID)", "node-7")
        text = text.replace("weft-coordinator:7070", "0.0.0.0:7070")
        return re.sub(r"0\.0\.0\.0:(\d+)", lambda m: f"127.0.0.1:{self.ports.get(int(m[1]), 0)}",
                      text)

    def start(self, container):
        arguments = [self.here(argument) for argument in container["args"]]
        fields = {"spec.nodeName": "node-7", "status.podIP": "127.0.0.1"}
        environment = {entry["name"]: fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
                       for entry in container.get("env", [])}
        process = subprocess.Popen(
            [BIN / arguments[0], *arguments[1:]], stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, env={**os.environ, **environment})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        line = process.stdout.readline()
        self.assertIn("ready", line)
        return line

    def answers(self, probe, names):
        if "grpc" in probe:
            channel = grpc.insecure_channel(f"127.0.0.1:{self.ports[probe['grpc']['port']]}")
            check = channel.unary_unary("/grpc.health.v1.Health/Check",
                                        request_serializer=bytes, response_deserializer=bytes)
            try:
                return check(b"", timeout=5) == b"\x08\x01"  # {status: SERVING}
            finally:
                channel.close()
        if "httpGet" in probe:
            port = self.ports[names[probe["httpGet"]["port"]]]
            url = f"http://127.0.0.1:{port}{probe['httpGet']['path']}"
            try:
                return urllib.request.urlopen(url, timeout=5).status == 200
            except urllib.error.HTTPError:
                return False
        program, *arguments = map(self.here, probe["exec"]["command"])
        return subprocess.run([BIN / program, *arguments], capture_output=True).returncode == 0

    def expect_answers(self, container):
        names = {port["name"]: port["containerPort"] for port in container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            with self.subTest(container=container["name"], kind=kind):
                deadline = time.monotonic() + 20  # a worker attaches after it is up
                while not self.answers(container[kind], names):
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.1)

    def test_every_probe_is_answered(self):
        containers = {c["name"]: c for item in build() for c in pod_of(item).get("spec", {}).get(
            "containers", [])}
        coordinator, worker = containers["coordinator"], containers["worker"]
        line = self.start(coordinator)
        names = {port["name"]: port["containerPort"] for port in coordinator["ports"]}
        self.ports[names["grpc"]] = int(line.rsplit(":", 1)[1])
        ports = yaml.safe_load((self.folder / "coordinator/coordinator.json").read_text())
        self.ports[names["metrics"]] = ports["metrics_port"]
        self.expect_answers(coordinator)

        self.assertIn("worker node-7,", self.start(worker))
        ports = yaml.safe_load((self.folder / "worker/daemon.json").read_text())
        self.ports[worker["ports"][0]["containerPort"]] = ports["metrics_port"]
        self.expect_answers(worker)

    def test_a_revoked_certificate_is_refused_without_a_restart(self):
        coordinator, = (c for item in build() for c in pod_of(item).get("spec", {}).get(
            "containers", []) if c["name"] == "coordinator")
        port = int(self.start(coordinator).rsplit(":", 1)[1])
        tls = self.folder / "tls"

        def certs(*command):
            subprocess.run([BIN / "weft", "certs", command[0], tls, *command[1:]], check=True,
                           capture_output=True)

        def whoami():
            return subprocess.run(
                [BIN / "weft", "auth", "whoami"], capture_output=True, text=True,
                env={**os.environ, "WEFT_SERVER": f"127.0.0.1:{port}",
                     "WEFT_TLS_CA": str(tls / "ca.pem"),
                     "WEFT_TLS_CERT": str(of_ann)})

        certs("issue", "client", "ann")
        # Revoking removes the file of the authority's folder; the person has one of their own.
        of_ann = shutil.copy(tls / "client-ann.pem", self.folder)
        known = whoami()
        self.assertEqual(known.returncode, 0, known.stderr)
        certs("revoke", "client", "ann")
        deadline = time.monotonic() + 20  # the list is read again within a second
        while (refused := whoami()).returncode == 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        self.assertIn("was revoked", refused.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
