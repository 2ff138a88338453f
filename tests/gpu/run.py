#!/usr/bin/env python3
"""Builds, tests and measures the GPU back end; the stages are in stages.py.

  tests/gpu/run.sh [--quick] [--only STAGE...] [--minutes N] [--list]

Every stage runs within a time limit of its own, cut to what is left of the whole run, and goes on
where another failed. What is worth most comes first; a stage that finds too little time left is not
begun, and named. After each stage results.json, results.md and log.txt are written anew, into $OUT
or else docs/benchmarks/gpu (the log into build/gpu). Exits non-zero when a stage failed or found no
time.
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
MINUTES, QUICK_MINUTES = 9, 5


class Run:
    """What stages share: options, the machine, where things are, and commands under time limits."""

    def __init__(self, options):
        self.quick = options.quick
        usual = QUICK_MINUTES if self.quick else MINUTES
        self.minutes = options.minutes or usual
        self.scale = max(self.minutes / usual, 1.0)
        self.deadline = time.monotonic() + 60 * self.minutes
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
        self.stages, self.targets = [], []  # names of what runs, and what the build stage makes
        self.native = {}       # of our programs; the build stage knows it
        self.packed = False    # programs were built elsewhere; likewise
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
        left, devices = run.deadline - began, len(run.machine["devices"])
        if devices == 0 and stage.devices > 0:
            raise stages.Failed("no CUDA device: nvidia-smi shows none")
        if devices < stage.devices:
            raise stages.Skipped(f"{devices} CUDA device: it needs {stage.devices}")
        if left < run.scale * stage.seconds_needed(run.quick):
            raise stages.NoTime(f"{max(left, 0):.0f} s were left of {60 * run.minutes:.0f}; "
                                f"hint: --only {stage.name}, or --minutes")
        stage.function(run, row["detail"])
    except stages.Skipped as why:
        row.update(status="skipped", why=str(why))
    except stages.NoTime as why:
        row.update(status="no time", why=str(why))
    except stages.Failed as why:
        row.update(status="failed", why=str(why))
    except Exception as error:  # a fault of a script must not cost the other stages
        row.update(status="failed", why=f"{type(error).__name__}: {error}")
    row["seconds"] = round(time.monotonic() - began, 1)
    print(f"   {row['status']} in {row['seconds']:.0f} s{': ' if row['why'] else ''}{row['why']}",
          flush=True)
    return row


def choose(names, quick, devices):
    """The stages to run, and the programs that the first of them builds at once."""
    # What others build on is made in any case; it takes no time where nothing changed.
    chosen = [stage for stage in stages.STAGES
              if stage.name in {"build", *names} and stage.limit(quick) > 0]
    # Alone it builds for all; where no device is, to see that everything can be built is all.
    wanted = chosen if len(chosen) > 1 else stages.STAGES
    built = [stage for stage in wanted
             if not stage.builds and (devices == 0 or stage.devices <= devices)]
    return chosen, list(dict.fromkeys(target for stage in built for target in stage.targets))


def write(run, rows, command):
    results = {"command": command, "quick": run.quick, **run.machine, "stages": rows}
    (run.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (run.folder / "results.md").write_text(report.page(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [stage.name for stage in stages.STAGES]
    parser.add_argument("--quick", action="store_true",
                        help="only the stages that tell soon whether a change works")
    parser.add_argument("--only", nargs="+", metavar="STAGE", choices=names)
    parser.add_argument("--minutes", type=float, help="time limit of the whole run (default "
                        f"{MINUTES}, --quick {QUICK_MINUTES}); those of its stages grow with it")
    parser.add_argument("--list", action="store_true", help="print the stages")
    options = parser.parse_args()
    if options.list:
        for stage in stages.STAGES:
            quick = f"{stage.quick_seconds:3} s" if stage.quick_seconds else "     "
            print(f"{stage.name:16} {stage.seconds:3} s, quick {quick}  {stage.function.__doc__}")
        return 0

    slow = [stage.name for stage in stages.STAGES if options.quick and not stage.quick_seconds]
    if left_out := set(options.only or []) & set(slow):
        parser.error(f"--quick has no {', '.join(sorted(left_out))}")

    run = Run(options)
    chosen, run.targets = choose(options.only or names, run.quick, len(run.machine["devices"]))
    run.stages = [stage.name for stage in chosen]
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
        run.log.close()
    print("\n".join(report.summary(rows)))
    print(f"written to {run.folder}")
    return 1 if any(row["status"] in ("failed", "no time") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
