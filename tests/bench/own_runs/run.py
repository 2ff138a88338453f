#!/usr/bin/env python3
"""How well the planner predicts the steps of this machine, before and after it learns from runs.

    python tests/bench/own_runs/run.py --bin build/release/bin --home /tmp/own_runs --seconds 100
    python tests/bench/own_runs/run.py --bin build/release/bin --home /tmp/own_runs \
        --output docs/benchmarks/own_runs.json

Runs 33 different jobs, one at a time, through a coordinator and a worker that offers eight cores,
however many the machine has. With --seconds no job is begun after so long: what has run is kept in
--home, and the next call goes on with the rest. When all have run, the coordinator fits what the
planner assumes to them (`weft plan --calibrate`), and the tables of the page are printed. Measure
on a machine that does nothing else.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from jobs import SPARSE, jobs, write_data  # noqa: E402
from machine import cpu_name  # noqa: E402

CORES = 8
RUN_SECONDS = 5  # as predicted
FEWEST_STEPS, MOST_STEPS = 12, 150


class Weft:
    """The CLI of a service in `home` whose worker offers this many cores."""

    def __init__(self, folder, home, cores):
        self.program = folder.resolve() / "weft"
        self.home = home
        self.cores = cores
        self.environment = dict(os.environ, WEFT_HOME=str(home / "weft"))

    def __call__(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], text=True, cwd=self.home,
                              env=self.environment, capture_output=True)
        if done.returncode != 0:
            raise SystemExit(f"weft {' '.join(map(str, arguments))}: {done.stderr}{done.stdout}")
        return done.stdout

    def json(self, *arguments):
        return json.loads(self(*arguments, "-o", "json"))

    def up(self):
        first = random.randint(20000, 32000)
        self("up", "--workers", 1, "--cores", self.cores, "--listen", f"127.0.0.1:{first}",
             "--metrics-listen", f"127.0.0.1:{first + 1}")


def run_job(weft, name, spec):
    path = weft.home / f"{name}.json"
    spec = {"name": name, **spec}
    spec["train"]["steps"] = FEWEST_STEPS
    path.write_text(json.dumps(spec))
    predicted = weft.json("plan", path)["candidates"][0]["plan"]["prediction"]
    steps = max(FEWEST_STEPS, min(MOST_STEPS, round(RUN_SECONDS / predicted["step_seconds"])))
    spec["train"]["steps"] = steps
    path.write_text(json.dumps(spec))
    begin = time.monotonic()
    weft("submit", path, "-f")
    print(f"{name}: {steps} steps, {time.monotonic() - begin:.1f} s", flush=True)


def percent(ratio):
    return f"{100 * ratio:.1f} %"


def seconds(number):
    return f"{number:.3f}" if number >= 1 else f"{1000 * number:.1f} ms"


def show(report):
    machine = report["machine"]
    print("| step times | median error | mean | 9 of 10 below | bias |\n|---|---|---|---|---|")
    for title, key in (("before: the defaults", "defaults"), ("after, the same runs", "after"),
                       ("after, runs not seen", "held_out"), ("and by runs near", "near")):
        row = machine[key]
        print(f"| {title} | {percent(row['median'])} | {percent(row['mean'])} "
              f"| {percent(row['percentile_90'])} | {percent(row['bias'])} |")
    print("\n| constant | before | after | range |\n|---|---|---|---|")
    for row in machine["constants"]:
        unit = " s" if row["unit"] == "seconds" else ""
        print(f"| `{row['name']}` | {row['before']:.3g}{unit} | {row['after']:.3g}{unit} "
              f"| {row['least']:g} to {row['most']:g} |")
    print("\n| job | how | measured | before | error | not seen | error | by runs near | error "
          "| memory, error |\n|---|---|---|---|---|---|---|---|---|---|")
    for row in reversed(machine["runs"]):
        measured = row["measured_seconds"]
        memory = row["planned_memory_bytes"] / row["memory_bytes"] - 1
        errors = [f"{seconds(row[key])} | {100 * (row[key] / measured - 1):+.1f} %"
                  for key in ("defaults_seconds", "held_out_seconds", "near_seconds")]
        print(f"| {row['run'].rsplit('-', 1)[0]} | {row['what']} | {seconds(measured)} "
              f"| {errors[0]} | {errors[1]} | {errors[2]} | {100 * memory:+.2f} % |")


def show_sparse(runs):
    """How many times as fast 2:4 sparse steps are as those of the dense job, planned and measured."""
    by_name = {row["run"].rsplit("-", 1)[0]: row for row in runs}
    print("\n| 2:4 against dense | before | by runs near | measured |\n|---|---|---|---|")
    for name, row in by_name.items():
        dense = by_name.get(name.removesuffix(SPARSE))
        if name.endswith(SPARSE) and dense is not None:
            ratios = [dense[key] / row[key]
                      for key in ("defaults_seconds", "near_seconds", "measured_seconds")]
            print(f"| {name} | " + " | ".join(f"{ratio:.2f} x" for ratio in ratios) + " |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--home", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    home = arguments.home.resolve()
    write_data(home)
    weft = Weft(arguments.bin, home, CORES)
    begin = time.monotonic()
    weft.up()
    try:
        ended = {item["spec"]["name"] for item in weft.json("ls", "--limit", 1000)["items"]
                 if item["state"] == "SUCCEEDED"}
        for name, spec in jobs().items():
            if name in ended:
                continue
            if time.monotonic() - begin > arguments.seconds:
                print("more jobs are left; run this again")
                return
            run_job(weft, name, spec)
        fitted = weft.json("plan", "--calibrate", "--dry-run")
    finally:
        weft("down")
    machine, = fitted["machines"]
    report = {"cpu": cpu_name(), "processors": os.cpu_count(), "cores_offered": CORES,
              "machine": machine, "left_out": fitted["left_out"]}
    show(report)
    show_sparse(machine["runs"])
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
