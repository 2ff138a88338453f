#!/usr/bin/env python3
"""Times how fast Weft and transformers continue a text with the same model, in turns.

    python tests/bench/generate_speed.py --weft build/release/bin/weft --model FOLDER [--output FILE]

FOLDER is a Hugging Face folder with a tokenizer, for example what the quick start exports. Both take
the most probable token in fp32 on all cores, with cached keys and values. A program's start is left
out: the seconds of a short text are taken from those of a long one. Needs torch and transformers.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from contestant import run  # noqa: E402
from machine import cpu_name  # noqa: E402

SHORT = 8


class Weft:
    def __init__(self, program, folder, prompt):
        self.command = [program, "generate", folder, "--prompt", prompt, "--temperature", "0",
                        "-o", "json", "--tokens"]

    def generate(self, count):
        """Seconds, and how many tokens came."""
        start = time.perf_counter()
        tokens = json.loads(run([*self.command, str(count)]))["tokens"]
        return time.perf_counter() - start, len(tokens)


class Transformers:
    def __init__(self, folder, prompt):
        import torch
        import transformers
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(os.cpu_count())
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder).float().eval()
        self.inputs = transformers.AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt")
        self.generate(SHORT)

    def generate(self, count):
        start = time.perf_counter()
        ids = self.model.generate(**self.inputs, do_sample=False, max_new_tokens=count,
                                  pad_token_id=0)
        return time.perf_counter() - start, ids.shape[1] - self.inputs["input_ids"].shape[1]


def tokens_per_second(program, count):
    short, few = program.generate(SHORT)
    long, many = program.generate(count)
    if many <= few:
        sys.exit("the text ends after a few tokens: choose another --prompt")
    return (many - few) / (long - short)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weft", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", default="In the beginning")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output")
    options = parser.parse_args()
    programs = {"weft": Weft(options.weft, options.model, options.prompt),
                "transformers": Transformers(options.model, options.prompt)}
    rates = {name: [] for name in programs}
    for _ in range(options.repeats):
        for name, program in programs.items():
            rates[name].append(tokens_per_second(program, options.tokens))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    report = {"cpu": cpu_name(), "cores": os.cpu_count(), "tokens": options.tokens,
              "peer": programs["transformers"].version, "tokens_per_second": rates}
    for name, value in medians.items():
        print(f"{name:14} {value:8.1f} tokens/s")
    print(f"ratio          {medians['weft'] / medians['transformers']:8.2f}")
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
