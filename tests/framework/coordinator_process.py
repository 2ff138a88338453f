"""A real coordinator as a process, for scripts that load it or make it fail."""

import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request


class CoordinatorProcess:
    """Started by start(), as often as one likes, on the same folder."""

    def __init__(self, binary, folder, arguments=()):
        self.binary = str(binary)
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.arguments = list(arguments)
        self.log = self.folder / "coordinator.log"
        self.process = None

    def start(self, limit=600):
        """Returns the seconds until it serves."""
        ports = self.folder / "coordinator.json"
        ports.unlink(missing_ok=True)
        begin = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.binary, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                 "--data-dir", self.folder, "--run-root", self.folder / "runs", *self.arguments],
                stdout=log, stderr=log)
        while not (ports.exists() and self.ready(ports)):
            if self.process.poll() is not None or time.monotonic() - begin > limit:
                raise RuntimeError(f"the coordinator does not serve; see {self.log}")
            time.sleep(0.01)
        return time.monotonic() - begin

    def ready(self, ports):
        try:
            said = json.loads(ports.read_text())
        except ValueError:
            return False  # half written
        self.address, self.metrics_address = said["address"], said["metrics_address"]
        try:
            with urllib.request.urlopen(f"http://{self.metrics_address}/readyz", timeout=5) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def metric(self, name):
        """The sum over all series of that name."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=30) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if line.startswith((name + "{", name + " ")))

    def resident_bytes(self):
        """Peak so far."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmHWM")

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)
