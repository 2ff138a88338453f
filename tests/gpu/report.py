"""results.json of tests/gpu/run.sh as a page."""

# Shares and ratios that the GPU back end is to reach, by what they are of.
MEMORY_SHARE = 0.85


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


def memory_bound(bench):
    return [case for case in bench["cases"]
            if case.get("unit") == "GB/s" and case.get("share_of_ceiling") is not None]


def targets(results):
    """(what, target, measured, met) of each target that this run measured."""
    rows = []
    if bench := results_of(results, "bench-kernels"):
        cases = memory_bound(bench)
        short = [case["name"] for case in cases if case["share_of_ceiling"] < MEMORY_SHARE]
        if cases:
            rows.append(("operations bound by memory", f"{MEMORY_SHARE:.0%} of the copy bandwidth",
                         f"{len(cases) - len(short)} of {len(cases)} cases", not short))
    return rows


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
    if bench := results_of(results, "bench-kernels"):
        lines += kernel_section(bench)
    return "\n".join(lines)
