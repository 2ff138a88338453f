#!/usr/bin/env python3
"""The least that each kernel must read, write and multiply, as the table in docs/kernels.md.

  tests/gpu/kernel_costs.py --bench FOLDER/kernels_bench [--write]

Checks the formulae against what kernels_bench counts of its cases, and the table against the
formulae; --write makes the table anew.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/kernels.md"
BEGIN, END = "<!-- costs -->", "<!-- /costs -->"
BANDWIDTH, PRODUCTS = 3.35e12, 989e12  # H100 SXM: bytes/s, dense bf16 FLOP/s, by its datasheet

# A case that kernels_bench counts on a CPU: 2048 tokens.
SMALL = {"T": 2048, "C": 768, "M": 3072, "V": 50304, "P": 1024, "B": 4, "S": 512, "H": 12, "K": 12,
         "D": 64, "N": 2**24 + 2**20}
# GPT-2 124M, 64 sequences of 1024 tokens; optimizers: its parameters.
LARGE = {"T": 65536, "C": 768, "M": 3072, "V": 50304, "P": 1024, "B": 64, "S": 1024, "H": 12,
         "K": 12, "D": 64, "N": 124_475_904}
PAIRS = "B*H*S*(S+1)/2"

# (operation, name of a case of size SMALL, bytes, FLOPs, what differs in SMALL)
ROWS = [
    ("linear, forward (C to M, bias)", "linear_forward/2048x768x3072/bf16/bias",
     "2*(T*C + C*M + T*M)", "2*T*C*M", {}),
    ("linear, gradient of its input", "linear_backward_input/2048x768x3072/bf16",
     "2*(T*C + C*M + T*M)", "2*T*C*M", {}),
    ("linear, gradient of its weight, added", "linear_backward_weight/2048x768x3072/bf16/accumulate"
     "/bias", "2*(T*C + T*M) + 8*C*M", "2*T*C*M", {}),
    ("attention, forward, causal", "attention_forward/4x512/h12k12d64/causal/bf16",
     "4*T*D*(H + K) + 4*T*H", f"4*D*{PAIRS}", {}),
    ("attention, backward, causal", "attention_backward/4x512/h12k12d64/causal/bf16",
     "8*T*D*(H + K) + 4*T*H", f"10*D*{PAIRS}", {}),
    ("layer norm, forward", "layer_norm_forward/2048x768/bf16", "4*T*C", "0", {}),
    ("layer norm of a sum, which it stores", "layer_norm_forward_add/2048x768/bf16", "8*T*C", "0",
     {}),
    ("layer norm, backward", "layer_norm_backward/2048x768/bf16", "6*T*C", "0", {}),
    ("layer norm, backward, added to the residual's gradient",
     "layer_norm_backward_add/2048x768/bf16", "8*T*C", "0", {}),
    ("RMS norm, forward", "rms_norm_forward/2048x768/bf16", "4*T*C", "0", {}),
    ("RMS norm of a sum, which it stores", "rms_norm_forward_add/2048x768/bf16", "8*T*C", "0", {}),
    ("RMS norm, backward", "rms_norm_backward/2048x768/bf16", "6*T*C", "0", {}),
    ("RMS norm, backward, added to the residual's gradient",
     "rms_norm_backward_add/2048x768/bf16", "8*T*C", "0", {}),
    ("GELU, forward", "gelu_forward/6291456/bf16", "4*T*M", "0", {}),
    ("GELU, backward", "gelu_backward/6291456/bf16", "6*T*M", "0", {}),
    ("GELU, backward with the forward result again", "gelu_backward_recompute/6291456/bf16",
     "8*T*M", "0", {}),
    ("SwiGLU, forward", "swiglu_forward/2048x2048/bf16", "6*T*M", "0", {"M": 2048}),
    ("SwiGLU, backward", "swiglu_backward/2048x2048/bf16", "10*T*M", "0", {"M": 2048}),
    ("SwiGLU, backward with the forward result again", "swiglu_backward_recompute/2048x2048/bf16",
     "12*T*M", "0", {"M": 2048}),
    ("rotary positions, in place", "rope/2048x8x64/bf16", "4*T*H*D", "0", {"H": 8}),
    ("cross entropy, gradient over the logits", "cross_entropy/256x50304/bf16/spread4", "4*T*V",
     "0", {"T": 256}),
    ("cross entropy, losses alone", "cross_entropy_loss/256x50304/bf16/spread4", "2*T*V", "0",
     {"T": 256}),
    ("embedding of tokens and P positions, forward",
     "embedding_forward/2048of50304x768+positions/bf16/from_f32",
     "2*T*C + 4*C*(min(T, V) + min(T, P))", "0", {}),
    ("embedding of tokens and P positions, backward",
     "embedding_backward/2048of50304x768+positions/bf16",
     "2*T*C + 8*C*(min(T, V) + min(T, P))", "0", {}),
    ("dropout, in place", "dropout_in_place/1572864from0p10/bf16", "4*T*C", "0", {}),
    ("affine by column, forward", "affine_forward_by_column/2048x768/bf16", "4*T*C", "0", {}),
    ("affine by column, backward", "affine_backward_by_column/2048x768/bf16", "6*T*C", "0", {}),
    ("add", "add/1572864/bf16", "6*T*C", "0", {}),
    ("scale, in place", "scale/1572864/bf16", "4*T*C", "0", {}),
    ("cast f32 to bf16", "cast/1572864/f32-bf16", "6*T*C", "0", {}),
    ("sum of squares of gradients", "norm_stat/16777216/1048576/f32", "4*N", "0", {}),
    ("SGD with momentum", "momentum/16777216/1048576", "20*N", "0", {}),
    ("AdamW", "adamw/step1000/16777216/1048576", "28*N", "0", {}),
    ("Lion", "lion/16777216/1048576", "20*N", "0", {}),
    ("stochastic rounding of f32 to bf16", "stochastic_round/4194304from0x1.000000", "6*N", "0", {"N": 2**22}),
]


def value(formula, sizes):
    return eval(formula, {"__builtins__": {}, "min": min}, sizes)  # formulae of this file alone


def table():
    lines = [BEGIN, "| operation | bytes | FLOPs | GB | GFLOP | least time, us |",
             "|---|---|---|---|---|---|"]
    for operation, _, bytes_, flops, _ in ROWS:
        moved, computed = value(bytes_, LARGE), value(flops, LARGE)
        least = max(moved / BANDWIDTH, computed / PRODUCTS)
        lines.append(f"| {operation} | {bytes_} | {'' if flops == '0' else flops} "
                     f"| {moved / 1e9:.3f} | {f'{computed / 1e9:.0f}' if computed else ''} "
                     f"| {least * 1e6:.0f} |")
    return "\n".join([*lines, END]).replace("*", " ")


def counted(bench):
    names = "|".join(re.escape(case) for _, case, *_ in ROWS)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "counts.json"
        subprocess.run([bench, "--count", "--filter", f"^({names})$", "--json", path], check=True)
        return {case["name"]: case for case in json.loads(path.read_text())["cases"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    problems = []
    cases = counted(options.bench)
    for operation, name, bytes_, flops, different in ROWS:
        sizes = {**SMALL, **different}
        case = cases.get(name)
        want = {"bytes": value(bytes_, sizes), "flops": value(flops, sizes)}
        if case is None:
            problems.append(f"{operation}: kernels_bench has no case {name}")
        elif any(case[key] != want[key] for key in want):
            problems.append(f"{operation}: kernels_bench counts {case}, the formulae say {want}")
    text = PAGE.read_text()
    parts = re.split(f"{BEGIN}.*{END}", text, flags=re.S)
    if len(parts) != 2:
        problems.append(f"docs/kernels.md has no place for the table between {BEGIN} and {END}")
    elif options.write:
        PAGE.write_text(parts[0] + table() + parts[1])
    elif table() not in text:
        problems.append("the table in docs/kernels.md is not that of the formulae; hint: --write")
    for problem in problems:
        print(f"kernel_costs: {problem}", file=sys.stderr)
    print(f"kernel_costs: {len(ROWS)} kernels, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
