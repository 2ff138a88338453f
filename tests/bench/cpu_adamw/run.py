#!/usr/bin/env python3
"""AdamW of Weft and the fused AdamW of PyTorch on CPUs, in turns, compared with what memory gives.

    python tests/bench/cpu_adamw/run.py --binary build/release/bin/adamw_bench \
        --output docs/benchmarks/cpu_adamw.json

Both update the parameters of a GPT-2 of 124 million numbers, f32, with f32 gradients and moments: 28
bytes a number. The bound is the time of these bytes at the best rate of copying (two streams) and of
adding one stream to three others (seven streams, those of an update).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

BYTES = 28


def sizes(blocks):
    width = 768
    shapes = [(50257, width), (1024, width)]
    for _ in range(blocks):
        shapes += [(3 * width, width), (3 * width,), (width, width), (width,),
                   (4 * width, width), (4 * width,), (width, 4 * width)] + [(width,)] * 5
    return shapes + [(width,)] * 2


class Ours:
    def __init__(self, binary, threads, blocks):
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_PROC_BIND="true")
        self.process = subprocess.Popen(
            [binary, "--threads", str(threads), "--blocks", str(blocks)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"failed: {binary}")

    def round(self):
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class PyTorch:
    def __init__(self, threads, blocks):
        import torch
        torch.set_num_threads(threads)
        self.version = torch.__version__
        self.parameters = [torch.nn.Parameter(torch.rand(shape)) for shape in sizes(blocks)]
        for parameter in self.parameters:
            parameter.grad = torch.rand_like(parameter)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-6, weight_decay=0.1, fused=True)
        self.optimizer.step()  # makes the moments

    def round(self):
        begin = time.perf_counter()
        self.optimizer.step()
        return time.perf_counter() - begin


def cpu_name():
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--output")
    arguments = parser.parse_args()

    ours = Ours(arguments.binary, arguments.threads, arguments.blocks)
    pytorch = PyTorch(arguments.threads, arguments.blocks)
    turns = []
    for _ in range(arguments.warmup + arguments.rounds):
        turn = ours.round()
        turn["pytorch"] = pytorch.round()
        turns.append(turn)
    turns = turns[arguments.warmup:]
    elements = turns[0]["elements"]
    median = {key: statistics.median(turn[key] for turn in turns)
              for key in ("update", "streams", "copy", "pytorch")}
    rates = {"copy": 8 * elements / min(turn["copy"] for turn in turns),
             "streams": BYTES * elements / min(turn["streams"] for turn in turns)}
    bound = BYTES * elements / max(rates.values())
    report = {
        "cpu": cpu_name(),
        "threads": arguments.threads,
        "elements": elements,
        "pytorch_version": pytorch.version,
        "rounds": len(turns),
        "seconds": {"weft": median["update"], "pytorch_fused": median["pytorch"], "bound": bound},
        "memory_bytes_per_second": rates,
        "update_bytes_per_second": BYTES * elements / median["update"],
        "share_of_bound": bound / median["update"],
        "times_as_fast_as_pytorch": median["pytorch"] / median["update"],
        "turns": turns,
    }
    text = json.dumps(report, indent=1)
    if arguments.output:
        with open(arguments.output, "w") as file:
            file.write(text + "\n")
    del report["turns"]
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
