#!/usr/bin/env python3
"""Two ranks, one of them four times slower: what rounds by time and rounds of steps make of their speeds.

    python3 tests/bench/slow_links/unequal_peers.py --trainer build/release/bin/weft-trainer \
        --text TEXT --output docs/benchmarks/unequal_peers.json

Trains the model of run.py with real weft-trainer processes on this machine. First each rank trains alone, both at
the same time: their shares of the batch a second are the speeds. The slow rank sleeps three steps before each step.
Then both train together in each mode, and the shares a second of both are compared with the sum of the speeds. All
of it --repeats times; medians count. The exit status says whether rounds by time reach TARGET of the sum.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[0]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machine import cpu_name  # noqa: E402
from run import BATCH, RANKS, Run, spec_of  # noqa: E402

SLOWER = 4
BY_TIME = "rounds by time"
TARGET = 0.9  # of the sum of speeds


def start(arguments, folder, text, train, rank, ranks, sleep):
    """A rank with these fields of `train`; it sleeps this many milliseconds before each step."""
    spec = spec_of(folder, text, 1, rank, "127.0.0.1")
    spec["world_size"] = spec["plan"]["mesh"]["data"] = spec["job"]["resources"]["ranks"] = ranks
    spec["job"]["train"].update(train, global_batch=BATCH // RANKS * ranks, eval_every_steps=0)
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps(spec))
    environment = dict(os.environ, OMP_NUM_THREADS="1", WEFT_LOG="info")
    if sleep:
        environment["WEFT_FAILPOINTS"] = f"trainer.before_step=sleep:{sleep}"
    return subprocess.Popen([arguments.trainer, "--spec", str(path)], env=environment, text=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def shares_a_second(processes, ranks, seconds):
    """Of each process, whose first step does not count: it allocates."""
    runs = [Run() for _ in processes]
    readers = [threading.Thread(target=run.read, args=(process.stderr,))
               for run, process in zip(runs, processes)]
    for reader in readers:
        reader.start()
    try:
        processes[0].wait(timeout=seconds)
        raise RuntimeError("a rank has ended: " + "".join(runs[0].lines[-20:]))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        for reader in readers:
            reader.join()
    return [ranks * run.reached() if run.steps else 0 for run in runs]


def train(arguments, root, text, name, fields, sleep):
    folder = root / name
    folder.mkdir()
    processes = [start(arguments, folder, text, fields, rank, RANKS, sleep * rank)
                 for rank in range(RANKS)]
    return shares_a_second(processes, RANKS, arguments.seconds)[0]


def alone(arguments, root, text, name, sleeps):
    processes = []
    for number, sleep in enumerate(sleeps):
        folder = root / f"{name}-{number}"
        folder.mkdir()
        processes.append(start(arguments, folder, text, {}, 0, 1, sleep))
    return shares_a_second(processes, 1, arguments.seconds)


def measure(arguments, root, text):
    """The speeds of both ranks alone, and together in each mode."""
    both = alone(arguments, root, text, "both", [0, 0])
    sleep = round(1000 * (SLOWER - 1) / both[1])
    speeds = alone(arguments, root, text, "unequal", [0, sleep])
    modes = {BY_TIME: {"local_round_seconds": arguments.round_seconds},
             "rounds of steps": {"local_steps": arguments.local_steps},
             "sums every step": {}}
    together = {mode: train(arguments, root, text, mode.replace(" ", "-"), fields, sleep)
                for mode, fields in modes.items()}
    return {"sleep_milliseconds": sleep, "shares_per_second_alone": speeds,
            "shares_per_second": together}


def summary(repeats):
    """Medians over the repeats; each is compared with the speeds of its own repeat."""
    def median(of):
        return statistics.median(map(of, repeats))

    modes = repeats[0]["shares_per_second"]
    of_sum = {mode: median(lambda each, mode=mode: each["shares_per_second"][mode] /
                           sum(each["shares_per_second_alone"])) for mode in modes}
    return {"repeats": len(repeats),
            "sleep_milliseconds": median(lambda each: each["sleep_milliseconds"]),
            "shares_per_second_alone": [
                median(lambda each, rank=rank: each["shares_per_second_alone"][rank])
                for rank in range(len(repeats[0]["shares_per_second_alone"]))],
            "shares_per_second": {mode: median(lambda each, mode=mode: each["shares_per_second"][mode])
                                  for mode in modes},
            "share_of_sum_of_speeds": of_sum, "target": TARGET, "holds": of_sum[BY_TIME] >= TARGET}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=60, help="of each run, with its start")
    parser.add_argument("--repeats", type=int, default=3, choices=range(1, 100), metavar="N")
    parser.add_argument("--round-seconds", type=float, default=5)
    parser.add_argument("--local-steps", type=int, default=32)
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    text = arguments.text.resolve()
    repeats = []
    for number in range(arguments.repeats):
        with tempfile.TemporaryDirectory(prefix="weft_unequal_peers_") as name:
            repeats.append(measure(arguments, pathlib.Path(name), text))
        print(f"repeat {number + 1}: {json.dumps(repeats[-1])}", flush=True)
    report = {"cpu": cpu_name(), "seconds": arguments.seconds,
              "round_seconds": arguments.round_seconds, "local_steps": arguments.local_steps,
              **summary(repeats)}
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print("| ranks | shares a second | of the sum of speeds |")
    print("|---|---|---|")
    for mode, rate in report["shares_per_second"].items():
        print(f"| {mode} | {rate:.2f} | {100 * report['share_of_sum_of_speeds'][mode]:.0f} % |")
    print(f"{BY_TIME}: at least {100 * TARGET:.0f} % of the sum of speeds: "
          f"{'holds' if report['holds'] else 'missed'}")
    return 0 if report["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
