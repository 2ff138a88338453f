"""results.json of tests/gpu/run.sh as a page."""

# What the GPU back end is to reach.
MEMORY_SHARE = 0.85
ATTENTION_SHARE = {"forward": 0.70, "backward": 0.60}
STEP_RATIO = {"gpt2-124m": 1.15, "gpt2-1.5b": 1.1, "llama-1b": 1.1}
STEP_SHARE = {"gpt2-1.5b": 0.55, "llama-1b": 0.55}
FP8_RATIO = 1.25
GIBI = 2**30


def summary(rows):
    lines = ["| stage | result | seconds | |", "|---|---|---|---|"]
    for row in rows:
        why = row["why"].replace("|", "/").replace("\n", " ")
        lines.append(f"| {row['stage']} | {row['status']} | {row['seconds']:.0f} | {why} |")
    return lines


def results_of(results, stage):
    for row in results["stages"]:
        if row["stage"] == stage:
            return row["detail"].get("results")
    return None


def percent(share):
    return "" if share is None else f"{share:.0%}"


def kernel_rows(bench):
    for case in bench["cases"]:
        if "ms" not in case:
            why = case.get("error") or case["missing"].split(";")[0]
            yield f"| {case['name']} | | | | {why.replace('|', '/')} |"
            continue
        rate = (f"{case['rate'] / 1e3:.2f} TB/s" if case["unit"] == "GB/s"
                else f"{case['rate'] / 1e3:.0f} TFLOP/s")
        yield (f"| {case['name']} | {case['ms']:.3f} | {rate} | {percent(case['share_of_ceiling'])} "
               f"| {case['runs']} runs |")


def kernel_section(bench):
    lines = ["## Kernels", "",
             f"Medians by device events; a buffer of several times the second-level cache is written "
             f"between runs. 100 % is a copy within the device's memory at "
             f"{bench['copy_gbytes_per_s'] / 1e3:.2f} TB/s (read and written), or a product of "
             f"8192 x 8192 x 8192 on random numbers at {bench['gemm_bf16_gflops'] / 1e3:.0f} TFLOP/s "
             f"in bf16, {bench['gemm_f32_gflops'] / 1e3:.0f} in f32, in this run.", "",
             "| case | ms | rate | of the ceiling | |", "|---|---|---|---|---|"]
    return lines + list(kernel_rows(bench)) + [""]


def attention_section(bench):
    lines = ["## Attention beside PyTorch", "",
             f"Milliseconds of one call in bf16; PyTorch {bench['pytorch']}, its flash and its cuDNN "
             "back end. The last column but one is the faster of them over ours, the last the time of "
             "cuDNN as we call it.", "",
             "| case | ms | TFLOP/s | of a product | flash | cuDNN | of the best | our cuDNN |",
             "|---|---|---|---|---|---|---|---|"]
    for case in bench["cases"]:
        peers = [f"{case['pytorch_ms'][name]:.3f}" if name in case["pytorch_ms"] else ""
                 for name in ("flash", "cudnn")]
        by_cudnn = f"{case['own_cudnn_ms']:.3f}" if "own_cudnn_ms" in case else ""
        if "ms" in case:
            of_product = (case["tflops"] * 1e3 / bench["gemm_bf16_gflops"]
                          if bench["gemm_bf16_gflops"] else None)
            lines.append(f"| {case['name']} | {case['ms']:.3f} | {case['tflops']:.0f} "
                         f"| {percent(of_product)} | {peers[0]} | {peers[1]} "
                         f"| {percent(case['share_of_best'])} | {by_cudnn} |")
        else:
            lines.append(f"| {case['name']} | {case['error'].replace('|', '/')} | | | {peers[0]} "
                         f"| {peers[1]} | | {by_cudnn} |")
    return lines + [""]


def step_section(rows):
    lines = ["## Training steps beside PyTorch", "",
             "PyTorch in bf16 with `torch.compile`, scaled_dot_product_attention and fused AdamW; FP8 "
             "beside Weft in bf16. In turns in one run. Shares are model FLOPs (causal attention counted half) over the faster product of 8192 "
             "x 8192 x 8192 in bf16, of Weft or its rival. Memory is all that Weft's allocator holds of "
             "the device, and of PyTorch's what tensors take.", "",
             "| model | precision | rival | Weft tokens/s | rival | ratio | of a product: Weft | rival "
             "| GiB: Weft | rival |", "|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        if "error" in row:
            why = row["error"].replace("\n", " ").replace("|", "/")[:300]
            lines.append(f"| {row['shape']} | {row['precision']} | {row['rival']} | {why} "
                         "| | | | | | |")
            continue
        rival = row["rival"]
        speed, share, memory = (row[key] for key in
                                ("tokens_per_second", "share_of_product", "peak_memory_bytes"))
        lines.append(f"| {row['shape']} ({row['parameters'] / 1e6:.0f} M) | {row['precision']} "
                     f"| {rival} | {speed['weft']:.0f} | {speed[rival]:.0f} | {row['ratio']:.2f} "
                     f"| {share['weft']:.0%} | {share[rival]:.0%} "
                     f"| {memory['weft'] / GIBI:.1f} | {memory[rival] / GIBI:.1f} |")
    return lines + [""]


def sparse24_section(bench):
    def number(value, factor=1):
        return "" if value is None else f"{factor * value:.2f}"

    lines = ["## 2:4 sparse products", "",
             "bf16, in turns; `ffn` is an MLP (width, 4 width, width) forward and backward with packing, "
             "estimates and a search for masks every 40 steps. Beside them y = x Wᵀ in PyTorch "
             f"{bench['pytorch']}, dense by cuBLAS and sparse by cuSPARSELt.", "",
             "| what | width | tokens | dense ms | 2:4 ms | ratio | cuBLAS ms | cuSPARSELt ms |",
             "|---|---|---|---|---|---|---|---|"]
    peers = {(row["what"], row["width"]): row for row in bench["cusparselt"]}
    for row in bench["cases"]:
        peer = peers.get((row["what"], row["width"]), {})
        lines.append(f"| {row['part']} {row['what']} | {row['width']} | {row['tokens']} "
                     f"| {number(row['dense_seconds'], 1e3)} | {number(row['sparse_seconds'], 1e3)} "
                     f"| {number(row['ratio'])} | {number(peer.get('dense_seconds'), 1e3)} "
                     f"| {number(peer.get('sparse_seconds'), 1e3)} |")
    return lines + [""]


def kernel_targets(bench):
    cases = [case for case in bench["cases"]
             if case.get("unit") == "GB/s" and case.get("share_of_ceiling") is not None]
    short = [case["name"] for case in cases if case["share_of_ceiling"] < MEMORY_SHARE]
    if cases:
        yield ("operations bound by memory", f"{MEMORY_SHARE:.0%} of the copy bandwidth",
               f"{len(cases) - len(short)} of {len(cases)} cases", not short)


def attention_targets(bench):
    for direction, target in ATTENTION_SHARE.items():
        shares = [case["share_of_best"] for case in bench["cases"]
                  if direction in case["name"] and case.get("share_of_best") is not None]
        if shares:
            yield (f"attention, {direction}", f"{target:.0%} of the faster of flash and cuDNN",
                   f"{min(shares):.0%} to {max(shares):.0%}", min(shares) >= target)


def step_targets(rows):
    for row in (row for row in rows if "error" not in row):
        shape = row["shape"]
        if row["precision"] == "fp8":
            yield (f"{shape} in FP8", f"{FP8_RATIO} x bf16", f"{row['ratio']:.2f}",
                   row["ratio"] >= FP8_RATIO)
            continue
        yield (f"{shape}, whole step", f"{STEP_RATIO[shape]} x PyTorch", f"{row['ratio']:.2f}",
               row["ratio"] >= STEP_RATIO[shape])
        if shape in STEP_SHARE:
            share = row["share_of_product"]["weft"]
            yield (f"{shape}, whole step", f"{STEP_SHARE[shape]:.0%} of a large product",
                   f"{share:.0%}", share >= STEP_SHARE[shape])
        memory = row["peak_memory_bytes"]
        yield (f"{shape}, peak memory", f"{memory['pytorch'] / GIBI:.1f} GiB, PyTorch's",
               f"{memory['weft'] / GIBI:.1f} GiB", memory["weft"] <= memory["pytorch"])


def targets(results):
    """(what, target, measured, met) of each target that this run measured."""
    kinds = [("bench-kernels", kernel_targets), ("bench-attention", attention_targets),
             ("bench-step", step_targets)]
    return [row for stage, of in kinds if (found := results_of(results, stage)) for row in of(found)]


def target_section(results):
    rows = targets(results)
    if not rows:
        return []
    lines = ["## Targets", "", "| what | target | measured | |", "|---|---|---|---|"]
    for what, target, measured, met in rows:
        lines.append(f"| {what} | {target} | {measured} | {'met' if met else '**missed**'} |")
    return lines + [""]


def page(results):
    devices = results["devices"]
    names = ", ".join(device["name"] for device in devices) or "no CUDA device"
    lines = [f"# The GPU back end on {names}", "",
             f"`{results['command']}`, {results['date']}, commit {results['commit']}. Driver "
             f"{results['driver']}, {results['cuda']}, PyTorch {results['pytorch']}; "
             f"{results['cores']} cores of {results['cpu']}.", "",
             *summary(results["stages"]), "", *target_section(results)]
    for stage, section in (("bench-step", step_section), ("bench-attention", attention_section),
                           ("bench-sparse24", sparse24_section),
                           ("bench-kernels", kernel_section)):
        if found := results_of(results, stage):
            lines += section(found)
    return "\n".join(lines)
