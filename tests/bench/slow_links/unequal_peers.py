#!/usr/bin/env python3
"""Two ranks, one of them four times slower: what rounds by time and rounds of steps make of their speeds.

    python3 tests/bench/slow_links/unequal_peers.py --trainer build/release/bin/weft-trainer \
        --text TEXT --output docs/benchmarks/unequal_peers.json

Trains the model of run.py with real weft-trainer processes on this machine. First each rank trains alone, both at
the same time: their shares of the batch a second are the speeds. The slow rank sleeps three steps before each step.
Then both train together in each way, and the shares a second of both are compared with the sum of the speeds.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[0]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machine import cpu_name  # noqa: E402
from run import BATCH, RANKS, Run, spec_of  # noqa: E402

SLOWER = 4


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=60, help="of each run, with its start")
    parser.add_argument("--round-seconds", type=float, default=5)
    parser.add_argument("--local-steps", type=int, default=32)
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    text = arguments.text.resolve()
    with tempfile.TemporaryDirectory(prefix="weft_unequal_peers_") as name:
        root = pathlib.Path(name)
        both = alone(arguments, root, text, "both", [0, 0])
        sleep = round(1000 * (SLOWER - 1) / both[1])
        speeds = alone(arguments, root, text, "unequal", [0, sleep])
        ways = {"rounds by time": {"local_round_seconds": arguments.round_seconds},
                "rounds of steps": {"local_steps": arguments.local_steps},
                "sums every step": {}}
        together = {way: train(arguments, root, text, way.replace(" ", "-"), fields, sleep)
                    for way, fields in ways.items()}
    report = {"cpu": cpu_name(), "seconds": arguments.seconds, "sleep_milliseconds": sleep,
              "round_seconds": arguments.round_seconds, "local_steps": arguments.local_steps,
              "shares_per_second_alone": speeds, "shares_per_second": together,
              "share_of_sum_of_speeds": {way: rate / sum(speeds) for way, rate in together.items()}}
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print("| ranks | shares a second | of the sum of speeds |")
    print("|---|---|---|")
    for way, rate in together.items():
        print(f"| {way} | {rate:.2f} | {100 * rate / sum(speeds):.0f} % |")


if __name__ == "__main__":
    main()
