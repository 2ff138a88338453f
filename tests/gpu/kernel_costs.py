#!/usr/bin/env python3
"""The least that each kernel must read, write and multiply, as the table in docs/kernels.md.

  tests/gpu/kernel_costs.py --bench FOLDER/kernels_bench [--write]

Checks the formulae against what kernels_bench counts of its cases, the table against the formulae,
and that each operation of kernels/ has a row; --write makes the table anew.
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
# H100 SXM by its datasheet: bytes/s, dense FLOP/s in bf16 and in FP8.
BANDWIDTH, PRODUCTS, FP8_PRODUCTS = 3.35e12, 989e12, 1979e12

# A case that kernels_bench counts on a CPU: 2048 tokens.
SMALL = {"T": 2048, "C": 768, "M": 3072, "V": 50304, "P": 1024, "B": 4, "S": 512, "H": 12, "K": 12,
         "D": 64, "N": 2**24 + 2**20}
# GPT-2 124M, 64 sequences of 1024 tokens; optimizers: its parameters.
LARGE = {"T": 65536, "C": 768, "M": 3072, "V": 50304, "P": 1024, "B": 64, "S": 1024, "H": 12,
         "K": 12, "D": 64, "N": 124_475_904}
PAIRS = "B*H*S*(S+1)/2"

# (operations of kernels/, what they do, name of a case of size SMALL or None where there is none,
# bytes, FLOPs, what differs in SMALL)
ROWS = [
    ("LinearForward", "linear, forward (C to M, bias)", "linear_forward/2048x768x3072/bf16/bias",
     "2*(T*C + C*M + T*M)", "2*T*C*M", {}),
    ("LinearBackwardInput", "linear, gradient of its input",
     "linear_backward_input/2048x768x3072/bf16", "2*(T*C + C*M + T*M)", "2*T*C*M", {}),
    ("LinearBackwardWeight", "linear, gradient of its weight (and bias), added",
     "linear_backward_weight/2048x768x3072/bf16/accumulate/bias",
     "2*(T*C + T*M) + 8*C*M", "2*T*C*M", {}),
    ("MatmulFp8", "FP8 product, forward (C to M, bias)",
     "linear_fp8/2048x768x3072/f8_e4m3*f8_e4m3-bf16/bias", "T*C + C*M + 2*T*M", "2*T*C*M", {}),
    ("MatmulFp8", "FP8 product, gradient of a weight, added",
     "linear_fp8/3072x2048x768/f8_e5m2*f8_e4m3-f32/accumulate", "T*C + T*M + 8*C*M", "2*T*C*M",
     {}),
    ("AttentionForward", "attention, forward, causal",
     "attention_forward/4x512/h12k12d64/causal/bf16", "4*T*D*(H + K) + 4*T*H", f"4*D*{PAIRS}", {}),
    ("AttentionBackward", "attention, backward, causal",
     "attention_backward/4x512/h12k12d64/causal/bf16", "8*T*D*(H + K) + 4*T*H", f"10*D*{PAIRS}",
     {}),
    ("AttendPart", "attention over keys of others, merged", None, "2*T*D*(5*H + 2*K) + 8*T*H",
     "4*D*B*H*S*S", {}),
    ("AttendPartBackward", "attention over keys of others, backward, added", None,
     "2*T*D*(7*H + 10*K) + 4*T*H", "10*D*B*H*S*S", {}),
    ("LayerNormForward", "layer norm, forward", "layer_norm_forward/2048x768/bf16", "4*T*C", "0",
     {}),
    ("LayerNormForward", "layer norm of a sum, which it stores",
     "layer_norm_forward_add/2048x768/bf16", "8*T*C", "0", {}),
    ("LayerNormBackward", "layer norm, backward", "layer_norm_backward/2048x768/bf16", "6*T*C", "0",
     {}),
    ("LayerNormBackward", "layer norm, backward, added to the residual's gradient",
     "layer_norm_backward_add/2048x768/bf16", "8*T*C", "0", {}),
    ("RmsNormForward", "RMS norm, forward", "rms_norm_forward/2048x768/bf16", "4*T*C", "0", {}),
    ("RmsNormForward", "RMS norm of a sum, which it stores", "rms_norm_forward_add/2048x768/bf16",
     "8*T*C", "0", {}),
    ("RmsNormBackward", "RMS norm, backward", "rms_norm_backward/2048x768/bf16", "6*T*C", "0", {}),
    ("RmsNormBackward", "RMS norm, backward, added to the residual's gradient",
     "rms_norm_backward_add/2048x768/bf16", "8*T*C", "0", {}),
    ("MaskedNormForward", "layer norm of masked columns, forward",
     "masked_norm_forward_layer/2048x768/bf16", "4*T*C", "0", {}),
    ("MaskedNormBackward", "layer norm of masked columns, backward",
     "masked_norm_backward_layer/2048x768/bf16", "6*T*C", "0", {}),
    ("MeasureNormPart", "norm of parts: what a part has found", None, "2*T*C + 8*T", "0", {}),
    ("NormOfParts", "norm of parts, forward", None, "4*T*C + 16*T", "0", {}),
    ("MeasureNormGradientPart", "norm of parts, backward: what a part has found", None,
     "4*T*C + 16*T", "0", {}),
    ("NormGradientOfParts", "norm of parts, backward", None, "6*T*C + 16*T", "0", {}),
    ("GeluForward", "GELU of either form, forward", "gelu_forward/6291456/bf16", "4*T*M", "0", {}),
    ("GeluBackward", "GELU, backward", "gelu_backward/6291456/bf16", "6*T*M", "0", {}),
    ("GeluBackward", "GELU, backward with the forward result again",
     "gelu_backward_recompute/6291456/bf16", "8*T*M", "0", {}),
    ("SquaredReluForward", "squared ReLU, forward", "squared_relu_forward/6291456/bf16", "4*T*M",
     "0", {}),
    ("SquaredReluBackward", "squared ReLU, backward with the forward result again",
     "squared_relu_backward/6291456/bf16", "8*T*M", "0", {}),
    ("UnitForward", "ReLU or SiLU, forward", "silu_forward/6291456/bf16", "4*T*M", "0", {}),
    ("UnitBackward", "ReLU or SiLU, backward with the forward result again",
     "silu_backward/6291456/bf16", "8*T*M", "0", {}),
    ("TanhForward", "tanh, forward", None, "4*T*C", "0", {}),
    ("TanhBackward", "tanh, backward", None, "6*T*C", "0", {}),
    ("SwiGluForward", "SwiGLU and GEGLU, forward", "swiglu_forward/2048x2048/bf16", "6*T*M", "0",
     {"M": 2048}),
    ("SwiGluBackward", "SwiGLU and GEGLU, backward", "swiglu_backward/2048x2048/bf16", "10*T*M",
     "0", {"M": 2048}),
    ("SwiGluBackward", "SwiGLU and GEGLU, backward with the forward result again",
     "geglu_backward_recompute/2048x2048/bf16", "12*T*M", "0", {"M": 2048}),
    ("Rope", "rotary positions, in place", "rope/2048x8x64/bf16", "4*T*H*D", "0", {"H": 8}),
    ("CrossEntropy", "cross entropy, gradient over the logits",
     "cross_entropy/256x50304/bf16/spread4", "4*T*V", "0", {"T": 256}),
    ("CrossEntropy", "cross entropy, losses alone", "cross_entropy_loss/256x50304/bf16/spread4",
     "2*T*V", "0", {"T": 256}),
    ("LogitPenalty", "squares of logits and their gradient, added",
     "logit_penalty/256x50304/bf16", "6*T*V", "0", {"T": 256}),
    ("MeasureLogitsPart", "cross entropy of parts: largest logit and sum of a part", None, "2*T*V",
     "0", {}),
    ("CrossEntropyOfParts", "cross entropy of parts: gradient over a part", None, "4*T*V", "0", {}),
    ("EmbeddingForward", "embedding of tokens and P positions, forward",
     "embedding_forward/2048of50304x768+positions/bf16/from_f32",
     "2*T*C + 4*C*(min(T, V) + min(T, P))", "0", {}),
    ("EmbeddingBackward", "embedding of tokens and P positions, backward",
     "embedding_backward/2048of50304x768+positions/bf16",
     "2*T*C + 8*C*(min(T, V) + min(T, P))", "0", {}),
    ("BlockSparseForward", "block-sparse linear, a quarter of the blocks, forward (C to M)",
     "block_sparse_forward/2048x768x3072by32/bf16-f32", "2*(T*C + T*M) + C*M", "T*C*M/2", {}),
    ("BlockSparseBackwardInput", "block-sparse linear, gradient of its input",
     "block_sparse_backward_input/2048x768x3072by32/bf16-f32", "2*(T*C + T*M) + C*M", "T*C*M/2",
     {}),
    ("BlockSparseBackwardWeight", "block-sparse linear, gradient of its blocks, added",
     "block_sparse_backward_weight/2048x768x3072by32/bf16-f32/accumulate",
     "2*(T*C + T*M) + 2*C*M", "T*C*M/2", {}),
    ("SparseForward", "2:4 sparse linear, forward (C to M)", "sparse24_forward/2048x768x3072/bf16",
     "2*(T*C + T*M) + 9*C*M/8", "T*C*M", {}),
    ("SparseBackwardInput", "2:4 sparse linear, gradient of its input",
     "sparse24_backward_input/2048x768x3072/bf16",
     "2*(T*C + T*M) + 9*C*M/8", "T*C*M", {}),
    ("SparseBackwardWeight",
     "2:4 sparse linear, gradient of its weight, estimated on the way, added",
     "sparse24_backward_weight/2048x768x3072/bf16/estimate", "2*(T*C + T*M) + 8*C*M", "T*C*M", {}),
    ("SampledBackwardWeight", "sampled product: gradient of an eighth of a weight, added", None,
     "2*(T*C + T*M) + 9*C*M/8", "T*C*M/4", {}),
    ("TransposableMask RowMask", "2:4 masks of a matrix of C by M",
     "transposable_mask/3072x768/f32", "4*C*M + C*M/8", "0", {}),
    ("Mvue", "2:4 estimate of a gradient", "mvue/2048x3072/bf16/minimum_variance", "4*T*M", "0",
     {}),
    ("SoftThreshold", "2:4 weights that change continuously, of a matrix of C by M", None,
     "8*C*M", "0", {}),
    ("MaskedDecay", "decay of what a 2:4 mask leaves out", None, "12*C*M + C*M/8", "0", {}),
    ("MaskedWeightDecay", "the same, of the weights themselves", None, "8*C*M + C*M/8", "0", {}),
    ("GatherRows ScatterRows", "rows gathered or scattered, all T of them", None, "4*T*C", "0", {}),
    ("SwapBlocks", "blocks of columns swapped", None, "4*T*C", "0", {}),
    ("Hadamard", "elementwise product, in f32, of matrices of C by M", None, "12*C*M", "0", {}),
    ("CayleyForward", "rotations by blocks of 32 columns, from what is trained", None,
     "190*C", "6144*C", {}),
    ("CayleyBackward", "the same, backward", None, "252*C", "16384*C", {}),
    ("MoeRoute", "router of experts, 2 of 8 for a token", None, "64*T", "0", {}),
    ("MoeRouteBackward", "router of experts, backward", None, "72*T", "0", {}),
    ("MoeDispatch", "places of tokens at their 2 experts", None, "24*T", "0", {}),
    ("MoeCombine", "sum of a token's 2 experts", None, "6*T*C + 16*T", "0", {}),
    ("MoeCombineBackward", "sum of a token's 2 experts, backward", None, "10*T*C + 24*T", "0", {}),
    ("UnfoldPatches", "patches of images, T C pixels", None, "6*T*C", "0", {}),
    ("Dropout", "dropout, in place", "dropout_in_place/1572864from0p10/bf16", "4*T*C", "0", {}),
    ("AffineForward", "affine by column, forward", "affine_forward_by_column/2048x768/bf16",
     "4*T*C", "0", {}),
    ("AffineBackward", "affine by column, backward", "affine_backward_by_column/2048x768/bf16",
     "6*T*C", "0", {}),
    ("Add", "add", "add/1572864/bf16", "6*T*C", "0", {}),
    ("Scale", "scale, in place", "scale/1572864/bf16", "4*T*C", "0", {}),
    ("AddScaled", "add a multiple, to f32", "add_scaled/1572864/bf16", "10*T*C", "0", {}),
    ("AddSign", "add a multiple of signs, in f32", None, "12*T*C", "0", {}),
    ("ApplyMask", "apply a mask, in place", "apply_mask/1572864/bf16", "5*T*C", "0", {}),
    ("Fill", "fill", "fill/1572864/bf16", "2*T*C", "0", {}),
    ("Cast", "cast f32 to bf16", "cast/1572864/f32-bf16", "6*T*C", "0", {}),
    ("QuantizeFp8", "FP8 quantisation, also transposed, and the largest magnitude",
     "quantize_fp8/2048x3072/bf16-f8_e4m3/to700.000000/q/transposed", "4*T*M", "0", {}),
    ("Dequantize4Bit", "NF4 back, by blocks of 64 with scales in 8 bits",
     "dequantize_4bit/2359296by64/nf4+double/bf16", "C*M/2 + C*M/64 + C*M/4096 + 4 + 2*C*M", "0", {}),
    ("QuantizeInt8", "INT8 quantisation by groups of 128", "quantize_int8/2048x768by128/bf16",
     "3*T*C + T*C/32", "0", {}),
    ("DequantizeInt8", "INT8 quantisation by groups of 128, back", "dequantize_int8/2048x768by128/bf16",
     "3*T*C + T*C/32", "0", {}),
    ("GroupQuantize", "4-bit quantisation by groups of 128", "group_quantize/1572864by4/bf16",
     "5*T*C/2 + T*C/16", "0", {}),
    ("GroupDequantize", "4-bit quantisation by groups of 128, back",
     "group_dequantize/1572864by4/bf16", "5*T*C/2 + T*C/16", "0", {}),
    ("NormStat", "sum of squares of gradients", "norm_stat/16777216/1048576/f32", "4*N", "0", {}),
    ("Sgd", "SGD", "sgd/16777216/1048576", "12*N", "0", {}),
    ("Sgd", "SGD with momentum", "momentum/16777216/1048576", "20*N", "0", {}),
    ("Lars", "LARS", "lars/16777216/1048576", "20*N", "0", {}),
    ("Adam", "Adam and AdamW", "adamw/step1000/16777216/1048576", "28*N", "0", {}),
    ("Lamb", "LAMB", "lamb/16777216/1048576", "28*N", "0", {}),
    ("Lion", "Lion", "lion/16777216/1048576", "20*N", "0", {}),
    ("ScheduleFreeAdamW", "AdamW without a schedule", "schedule_free_adamw/16777216/1048576",
     "36*N", "0", {}),
    ("Adafactor", "Adafactor: gradients three times, parameters twice",
     "adafactor/step10/4096x4096/1x4096", "24*N", "0", {"N": 4096 * 4097}),
    ("Momentum", "Muon's direction", "muon_nesterov/16777216/1048576", "16*N", "0", {}),
    ("Orthogonalize", "Muon's iterations, 5 on a matrix of C by M",
     "orthogonalize/768x3072/bf16", "8*C*M", "5*(4*C*C*M + 2*C*C*C)", {}),
    ("StochasticRound", "stochastic rounding of f32 to bf16",
     "stochastic_round/4194304from0x1.000000", "6*N", "0", {"N": 2**22}),
]
# What works on a few numbers, and costs a launch.
LAUNCHES = ["UpdateFp8Scales", "AddLosses", "DecideUpdate"]


def declared():
    """The operations of kernels/: what WEFT_DEVICE_OP makes in their headers."""
    return {name for header in PAGE.parents[1].glob("kernels/*/*.h")
            for name in re.findall(r"^WEFT_DEVICE_OP\((\w+),", header.read_text(), re.M)}


def value(formula, sizes):
    return eval(formula, {"__builtins__": {}, "min": min}, sizes)  # formulae of this file alone


def table():
    lines = [BEGIN, "| operation | bytes | FLOPs | GB | GFLOP | least time, us |",
             "|---|---|---|---|---|---|"]
    for functions, operation, _, bytes_, flops, _ in ROWS:
        moved, computed = value(bytes_, LARGE), value(flops, LARGE)
        products = FP8_PRODUCTS if "Fp8" in functions else PRODUCTS
        least = max(moved / BANDWIDTH, computed / products)
        lines.append(f"| {operation} | {bytes_} | {'' if flops == '0' else flops} "
                     f"| {moved / 1e9:.3f} | {f'{computed / 1e9:.0f}' if computed else ''} "
                     f"| {least * 1e6:.0f} |")
    return "\n".join([*lines, END]).replace("*", " ")


def counted(bench):
    names = "|".join(re.escape(case) for _, _, case, *_ in ROWS if case)
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
    there = declared()
    told = {name for functions, *_ in ROWS for name in functions.split()} | set(LAUNCHES)
    problems += [f"{name} has no row in the table" for name in sorted(there - told)]
    problems += [f"{name}, which has a row, is no operation" for name in sorted(told - there)]
    for _, operation, name, bytes_, flops, different in ROWS:
        if name is None:
            continue
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
    print(f"kernel_costs: {len(there)} operations in {len(ROWS)} rows, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
