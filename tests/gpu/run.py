#!/usr/bin/env python3
"""Builds, tests and measures the GPU back end; the stages are in stages.py.

  tests/gpu/run.sh [--quick] [--only STAGE...] [--minutes N] [--list]

Every stage runs within a time limit of its own and goes on where another failed. After each of them
results.json, results.md and log.txt are written anew, into $OUT or else docs/benchmarks/gpu (the
log into build/gpu). Exits non-zero when a stage failed.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import machine  # noqa: E402
import report  # noqa: E402
import stages  # noqa: E402

ROOT = machine.ROOT
BUILD = ROOT / "build/gpu"
MINUTES = 9


class Run:
    """What stages share: options, the machine, where things are, and commands under time limits."""

    def __init__(self, options):
        self.quick = options.quick
        self.scale = options.minutes / MINUTES
        self.deadline = time.monotonic() + 60 * options.minutes
        self.root, self.build = ROOT, BUILD
        self.folder = pathlib.Path(os.environ.get("OUT") or ROOT / "docs/benchmarks/gpu")
        logs = self.folder if os.environ.get("OUT") else BUILD
        for folder in (self.folder, logs, BUILD):
            folder.mkdir(parents=True, exist_ok=True)
        self.log = open(logs / "log.txt", "w")
        self.machine = machine.describe()
        self.environment = dict(os.environ, PYTHONUNBUFFERED="1")
        self.limit = 0.0  # when the current stage must end
        self.running = []
        self.native = {}       # of our programs; the build stage knows it
        self.compiling = None  # what PyTorch compiles while we do

    def seconds_left(self):
        return min(self.limit, self.deadline) - time.monotonic()

    def start(self, command, environment=None):
        """Starts a command in a process group of its own, its output going to the log file only."""
        self.log.write(f"\n$ {' '.join(map(str, command))}\n")
        self.log.flush()
        process = subprocess.Popen(
            list(map(str, command)), cwd=self.root, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**self.environment, **(environment or {})}, start_new_session=True)
        self.running.append(process)
        return process

    def finish(self, process, limit=None):
        """Waits for a command; (exit status, output), status None when the time was up."""
        limit = min(limit or 1e9, max(self.seconds_left(), 1))
        try:
            text, _ = process.communicate(timeout=limit)
            status = process.returncode
        except subprocess.TimeoutExpired:
            self.kill(process)
            text, status = self.rest_of(process), None
        self.running.remove(process)
        self.log.write(text + f"\n[{process.args[0]}: "
                       f"{'out of time' if status is None else f'status {status}'}]\n")
        self.log.flush()
        return status, text

    @staticmethod
    def rest_of(process):
        """What a killed command had printed; one that the driver holds may not end at once."""
        try:
            return process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired as error:
            return (error.stdout or b"").decode(errors="replace")

    def command(self, command, limit=None, environment=None):
        return self.finish(self.start(command, environment), limit)

    def kill(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def kill_all(self):
        for process in self.running:
            self.kill(process)


def run_stage(run, stage):
    """Runs a stage; its row of the report."""
    began = time.monotonic()
    run.limit = began + run.scale * stage.limit(run.quick)
    row = {"stage": stage.name, "status": "passed", "why": "", "detail": {}}
    print(f"== {stage.name}", flush=True)
    try:
        if run.deadline - began < 1:
            raise stages.Failed("no time was left for it")
        if stage.needs_device and not run.machine["devices"]:
            raise stages.Failed("no CUDA device: nvidia-smi shows none")
        stage.function(run, row["detail"])
    except stages.Skipped as why:
        row.update(status="skipped", why=str(why))
    except stages.Failed as why:
        row.update(status="failed", why=str(why))
    except Exception as error:  # a fault of a script must not cost the other stages
        row.update(status="failed", why=f"{type(error).__name__}: {error}")
    row["seconds"] = round(time.monotonic() - began, 1)
    print(f"   {row['status']} in {row['seconds']:.0f} s{': ' if row['why'] else ''}{row['why']}",
          flush=True)
    return row


def write(run, rows, command):
    results = {"command": command, "quick": run.quick, **run.machine, "stages": rows}
    (run.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (run.folder / "results.md").write_text(report.page(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [stage.name for stage in stages.STAGES]
    parser.add_argument("--quick", action="store_true",
                        help="fewer tools and shapes, for a look after a change")
    parser.add_argument("--only", nargs="+", metavar="STAGE", choices=names, default=names)
    parser.add_argument("--minutes", type=float, default=MINUTES,
                        help="time limit of the whole run; those of its stages grow with it")
    parser.add_argument("--list", action="store_true", help="print the stages")
    options = parser.parse_args()
    if options.list:
        for stage in stages.STAGES:
            print(f"{stage.name:18} {stage.limit(False):4} s at most  {stage.function.__doc__}")
        return 0

    run = Run(options)
    # What others build on is made in any case; it takes no time where nothing changed.
    chosen = [stage for stage in stages.STAGES if stage.name in {"build", *options.only}]
    targets = [target for stage in chosen for target in stage.targets]
    run.targets = list(dict.fromkeys(targets))
    rows = []

    def stop(_signal, _frame):
        run.kill_all()
        raise SystemExit("run: told to stop")

    signal.signal(signal.SIGTERM, stop)
    command = "tests/gpu/run.sh " + " ".join(sys.argv[1:])
    device = run.machine["devices"][0]["name"] if run.machine["devices"] else "no CUDA device"
    print(f"{device}, CUDA: {run.machine['cuda']}, PyTorch: {run.machine['pytorch']}, "
          f"commit {run.machine['commit']}", flush=True)
    try:
        for stage in chosen:
            rows.append(run_stage(run, stage))
            write(run, rows, command.strip())
    finally:
        run.kill_all()
    print("\n".join(report.summary(rows)))
    print(f"written to {run.folder}")
    return 1 if any(row["status"] == "failed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
