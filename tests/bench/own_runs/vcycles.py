#!/usr/bin/env python3
"""How well the planner predicts the seconds of a whole V-cycle, before and after it learns from runs.

    python tests/bench/own_runs/vcycles.py --bin build/release/bin --home /tmp/vcycles \
        --output docs/benchmarks/vcycle_times.json

Plans every cycle (`weft plan`, the sum of its phases), and runs them one after the other through a
coordinator and a worker that offers two cores. After each the coordinator fits what the planner
assumes to the runs so far (`weft plan --calibrate`), and the next cycle is planned once more before
it runs; the first one, which has none before it, after all others. Measured is the time from the
submission to the end. A second table compares the parts of both: what the ledger of the job calls
useful is all steps and validations, except those of grown weights, which it has among the starts. A
third one has each phase: the time of its attempts.
Prints the tables; --output writes the same as JSON. Ends with 1 when a plan of the total time of any
cycle, before it learns or after, is off by more than 12 %. Measure on a machine that does nothing
else.
"""

import argparse
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from jobs import job, write_data  # noqa: E402
from machine import cpu_name  # noqa: E402
from run import Weft  # noqa: E402

CORES = 2
RUN_SECONDS = 45  # of steps, as predicted
SHARES = (1, 4, 4)  # of the steps, by level: down, small, up
MOST_ERROR = 0.12  # of the total time of a cycle
PLANS = {"planned": "planned", "taught": "planned, taught"}


def half(sizes):
    return {"layers": sizes["layers"] // 2, "width": sizes["width"] // 2}


def phases(spec, steps, levels):
    """Of a V-cycle of two or three levels which takes about this many steps of the whole model."""
    whole = {"layers": spec["model"]["layers"], "width": spec["model"]["width"]}
    small = half(whole)
    first, middle, last = (max(2, steps * share // sum(SHARES)) for share in SHARES)
    down = {"method": "coalesce"}
    up = {"method": "decoalesce", "alpha": 0.5}
    if levels == 2:
        return [{"steps": first}, {"steps": middle, **small, "growth": down},
                {"steps": last, "growth": up}]
    return [{"steps": first}, {"steps": first, **small, "growth": down},
            {"steps": middle, **half(small), "growth": down},
            {"steps": middle, **small, "growth": up}, {"steps": last, **whole, "growth": up}]


def cycles():
    """Levels and job by name, in the order in which they run."""
    made = {
        "gpt2": (2, job("gpt2", 8, 256, 128, 16, "bf16", 2)),
        "gpt2-three-levels": (3, job("gpt2", 8, 256, 128, 8, "fp32", 1, 2)),
        "llama": (2, job("llama", 6, 256, 128, 16, "bf16", 2)),
        "bert": (2, job("bert", 6, 256, 128, 16, "fp32", 2)),
        "vit": (2, job("vit", 6, 256, 8, 32, "fp32", 1, 2)),
    }
    for _, spec in made.values():
        spec["model"]["heads"] = 4
    return made


def plan(weft, path, spec):
    path.write_text(json.dumps(spec))
    return weft.json("plan", path)


def error(planned, measured):
    return planned / measured - 1


def percent(share):
    return f"{100 * share:+.1f} %"


def parts(plans):
    """What plans say of a run, by the classes of the ledger that have the same."""
    sums = {"starts": 0, "useful": 0, "checkpoints": 0}
    for index, phase in enumerate(plans["phases"]):
        run = phase["run"]
        # Grown weights are validated before the first step.
        grown = run["validation_seconds"] / run["validations"] if index > 0 else 0
        sums["starts"] += (run["start_seconds"] + run["weights_seconds"]
                           + run["growth_fit_seconds"] + grown)
        sums["useful"] += (run["warm_up_seconds"] + run["steps_seconds"]
                           + run["validation_seconds"] - grown)
        sums["checkpoints"] += run["checkpoint_seconds"]
    return sums


def of_taught(plans):
    return {"taught_seconds": plans["seconds"], "taught_parts": parts(plans),
            "taught_phases": phase_seconds(plans)}


def phase_seconds(plans):
    return [phase["seconds"] for phase in plans["phases"]]


def measured_phases(run):
    """Seconds of each phase of a job that has ended: of all attempts up to the one that completed it."""
    seconds, ended = 0, []
    for attempt in run["attempts"]:
        seconds += attempt["ended_at"] - attempt["started_at"]
        if attempt["reason"] == "COMPLETED":
            ended.append(seconds)
            seconds = 0
    return ended


def spent(ledger):
    def of(name):
        return ledger.get(f"{name}_seconds", 0)
    return {"starts": of("queued") + of("starting"), "useful": of("useful"),
            "checkpoints": of("checkpoint")}


def missed(rows):
    """The plans of total times that are off by more than MOST_ERROR, for people."""
    off = [(row["name"], kind, error(row[f"{key}_seconds"], row["measured_seconds"]))
           for row in rows for key, kind in PLANS.items()]
    return [f"{name}: {kind} {percent(share)}" for name, kind, share in off
            if abs(share) > MOST_ERROR]


def show(rows):
    print("| V-cycle | how | phases | steps | planned | error | planned, taught | error "
          "| measured |")
    print("|" + 9 * "---|")
    for row in rows:
        measured = row["measured_seconds"]
        errors = [f"{row[f'{key}_seconds']:.1f} s | {percent(error(row[f'{key}_seconds'], measured))}"
                  for key in PLANS]
        print(f"| {row['name']} | {row['how']} | {row['phases']} | {row['steps']} "
              f"| {errors[0]} | {errors[1]} | {measured:.1f} s |")
    print("\n| V-cycle | starts, planned | measured | steps and validations, planned | measured "
          "| checkpoints, planned | measured |")
    print("|" + 7 * "---|")
    for row in rows:
        pairs = [f"{row['taught_parts'][part]:.1f} s | {row['measured_parts'][part]:.1f} s"
                 for part in ("starts", "useful", "checkpoints")]
        print(f"| {row['name']} | " + " | ".join(pairs) + " |")
    print("\n| V-cycle | phase | planned | error | planned, taught | error | measured |")
    print("|" + 7 * "---|")
    for row in rows:
        for index, measured in enumerate(row["measured_phases"]):
            errors = [f"{planned[index]:.1f} s | {percent(error(planned[index], measured))}"
                      for planned in (row[f"{key}_phases"] for key in PLANS)]
            print(f"| {row['name']} | {index + 1} | " + " | ".join(errors) + f" | {measured:.1f} s |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--home", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    home = arguments.home.resolve()
    write_data(home)
    weft = Weft(arguments.bin, home, CORES)
    weft.up()
    rows = []
    try:
        planned = {}
        for name, (levels, spec) in cycles().items():
            spec = {"name": f"vcycle-{name}", **spec}
            path = home / f"{name}.json"
            spec["phases"] = phases(spec, 90, levels)
            whole = plan(weft, path, spec)
            steps = round(90 * RUN_SECONDS / whole["run"]["steps_seconds"])
            spec["phases"] = phases(spec, steps, levels)
            planned[name] = plan(weft, path, spec)
        for name, before in planned.items():
            path = home / f"{name}.json"
            taught = weft.json("plan", path)
            job_name = weft("submit", path, "-o", "name").split()[-1]
            weft("job", "wait", job_name)
            run = weft.json("job", "describe", job_name)
            first = before["phases"][0]
            rows.append({
                "name": name, "how": f"{json.loads(path.read_text())['train']['precision']}, "
                f"{first['mesh']}",
                "phases": ", ".join(f"{phase['steps']} of {phase['layers']} x {phase['width']}"
                                    for phase in before["phases"]),
                "steps": before["steps"], "planned_seconds": before["seconds"],
                "planned_phases": phase_seconds(before), **of_taught(taught),
                "measured_parts": spent(run["ledger"]), "measured_phases": measured_phases(run),
                "measured_seconds": run["ended_at"] - run["submitted_at"]})
            print(name, rows[-1], flush=True)
            weft("plan", "--calibrate")
        first = home / f"{rows[0]['name']}.json"
        rows[0].update(of_taught(weft.json("plan", first)))
    finally:
        weft("down")
    show(rows)
    if arguments.output:
        arguments.output.write_text(json.dumps(
            {"cpu": cpu_name(), "processors": os.cpu_count(), "cycles": rows}, indent=1) + "\n")
    if off := missed(rows):
        print(f"\nThe total time is off by more than {100 * MOST_ERROR:.0f} %: {', '.join(off)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
