"""The stages of tests/gpu/run.sh: each builds, tests or measures something and fills `detail`."""

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import tarfile
from typing import Callable

import machine


class Failed(Exception):
    """The stage found something wrong; the message says what."""


class Skipped(Exception):
    """The stage has nothing to do here; the message says why."""


class NoTime(Exception):
    """The time of the whole run ended before the stage; the message says what it lacks."""


@dataclasses.dataclass
class Stage:
    name: str
    function: Callable
    seconds: int  # its time limit
    quick_seconds: int = 0  # likewise with --quick, which leaves out a stage of 0
    devices: int = 1  # that it needs
    targets: list = dataclasses.field(default_factory=list)
    builds: bool = False  # its targets itself, when it begins

    def limit(self, quick):
        return self.quick_seconds if quick else self.seconds

    def seconds_needed(self, quick):
        """With less time than this left it is not begun."""
        return self.limit(quick) / 4


def unpacked_third_party(run):
    """The folder of what tests/gpu/pack.sh collected; None where the machine's own is used."""
    archive, folder = run.root / "build/gpu-pack/third_party.tar.gz", run.build / "third_party"
    if not archive.exists():
        return None
    stamp = folder / "stamp"
    state = str(archive.stat().st_mtime_ns)
    if not stamp.exists() or stamp.read_text() != state:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tarfile.open(archive) as archived:
            archived.extractall(folder)
        stamp.write_text(state)
    return folder / "usr"


def toolkit_has(compiler, name):
    """True when the toolkit of this nvcc holds a library for the linker."""
    root = pathlib.Path(os.path.realpath(compiler)).parents[1]
    return any((root / lib / f"lib{name}.so").exists()
               for lib in ("lib64", "lib", "targets/x86_64-linux/lib"))


def find_libraries(run):
    """Says in `run.native` where our programs find theirs; (name, file, headers) of NVIDIA's."""
    folders, found = [], []
    if third_party := unpacked_third_party(run):
        folders += [f"{third_party}/lib/x86_64-linux-gnu", f"{third_party}/lib"]
    for name in ("cudart", "cublasLt", "nccl", "cudnn", "cusparse", "cusparseLt"):
        file, include = machine.library(name)
        if file:
            # Also of the toolkit: NCCL, cuDNN and cuSPARSE are loaded by their names.
            folders.append(os.path.dirname(file))
            found.append((name, file, include))
    run.native = {"LD_LIBRARY_PATH": ":".join(
        folders + list(filter(None, [os.environ.get("LD_LIBRARY_PATH")])))}
    return found


def options_of_build(run, libraries):
    """Options for CMake; puts what a compiler needs into `run.native`."""
    compiler = machine.nvcc()
    if compiler is None:
        raise Failed("no nvcc on the PATH, in CUDA_HOME or in /usr/local/cuda; "
                     "hint: tests/gpu/pack.sh --programs")
    run.native["PATH"] = f"{os.path.dirname(compiler)}:{os.environ['PATH']}"
    options = ["-DWEFT_SERVICE=OFF", f"-DCMAKE_CUDA_COMPILER={compiler}",
               "-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF",
               f"-DCMAKE_CUDA_ARCHITECTURES={architecture(run)}",
               f"-DWEFT_TOGETHER={';'.join(run.targets)}"]
    if third_party := unpacked_third_party(run):
        options.append(f"-DCMAKE_PREFIX_PATH={third_party}")
    headers = []
    for name, file, include in libraries:
        if not toolkit_has(compiler, name):
            headers += [include] if include else []
            if name == "cublasLt":  # A wheel has no name for the linker.
                options.append(f"-DCUDA_{name}_LIBRARY={file}")
    if headers:
        run.native["CPLUS_INCLUDE_PATH"] = ":".join(
            headers + list(filter(None, [os.environ.get("CPLUS_INCLUDE_PATH")])))
    if shutil.which("ninja") is None:
        options += ["-G", "Unix Makefiles"]
    return options


def architecture(run):
    """Of the first device; without one, of Hopper."""
    devices = run.machine["devices"]
    return machine.architecture(devices[0]) if devices else "90a"


def unpack_programs(run):
    """Takes programs that tests/gpu/pack.sh --programs built for this device; false without."""
    archive = run.root / f"build/gpu-pack/programs-{architecture(run)}.tar.xz"
    if not archive.exists():
        return False
    with tarfile.open(archive) as archived:
        archived.extractall(run.build / "bin")
    return True


def build(run, detail):
    """Compiles engine, kernels, tests and benchmarks for the device, or takes the packed ones."""
    libraries = find_libraries(run)
    run.packed = detail["packed"] = unpack_programs(run)
    if run.packed:
        start_compiling_for_pytorch(run)
        if missing := [name for name in run.targets if not (run.build / "bin" / name).exists()]:
            raise Failed(f"not packed: {', '.join(missing)}")
        return
    status, text = run.command(
        ["cmake", "--preset", "cuda", "-B", run.build, *options_of_build(run, libraries)],
        environment=run.native)
    if status != 0:
        raise Failed("cmake: " + last_lines(text, "CMake Error", 3))
    start_compiling_for_pytorch(run)
    if run.targets:
        compile_programs(run, "weft_together", run.targets, detail)


def compile_programs(run, target, programs, detail):
    """Builds a target, which makes these programs."""
    cores = str(len(os.sched_getaffinity(0)))
    goes_on = ["-k", "0"] if shutil.which("ninja") else ["-k"]
    status, text = run.command(
        ["cmake", "--build", run.build, "--target", target, "-j", cores, "--", *goes_on],
        environment=run.native)
    detail["missing"] = [name for name in programs if not (run.build / "bin" / name).exists()]
    detail["warnings"] = len(re.findall(r"warning[: #]", text))
    if status is None:
        raise Failed(f"out of time; not built: {', '.join(detail['missing']) or 'nothing'}")
    if status != 0:
        raise Failed(last_lines(text, "error", 5))


def last_lines(text, word, count):
    """The first lines with a word, or else the last ones: what a reader of a report wants first."""
    lines = [line for line in text.splitlines() if word in line] or text.splitlines()[-count:]
    return " | ".join(line.strip()[:300] for line in lines[:count])


def program(run, name):
    path = run.build / "bin" / name
    if not path.exists():
        raise Failed(f"{name} was not built")
    return path


def read_tests(status, text, detail):
    """Counts what GoogleTest printed. Fails unless all passed, or were skipped for another reason
    than that no device was seen."""
    passed = re.findall(r"^\[ +OK \] (\S+)", text, re.M)
    failed = sorted(set(re.findall(r"^\[ +FAILED +\] (\w+\.\w+)", text, re.M)))
    skipped = sorted(set(re.findall(r"^\[ +SKIPPED +\] (\w+\.\w+)", text, re.M)))
    started = re.findall(r"^\[ RUN +\] (\S+)", text, re.M)
    detail.update(passed=len(passed), failed=failed, skipped=skipped,
                  skipped_because=sorted(set(re.findall(r": Skipped\n(.*)\n", text))))
    if status is None:
        raise Failed(f"out of time in {started[-1] if started else 'the first test'}, "
                     f"{len(passed)} had passed")
    if status != 0:
        raise Failed(f"{len(failed)} tests: {', '.join(failed[:6])}" if failed
                     else f"status {status}: {last_lines(text, 'error', 2)}")
    if any("CUDA device" in why for why in detail["skipped_because"]):
        raise Failed(f"{len(skipped)} tests were skipped: the program sees no CUDA device")
    if not passed:
        raise Failed("no test ran")


# Tests that run at the same time: the device is shared, and each has a process on the host.
TESTS_AT_ONCE = 6


def run_tests(run, name, detail):
    """Each test of a program in a process of its own: after a fault a device answers no other call
    of the process that made it."""
    test = program(run, name)
    status, text = run.command([test, "--gtest_list_tests"], environment=run.native)
    if status != 0:
        raise Failed(last_lines(text, "error", 2))
    names, suite = [], ""
    for line in text.splitlines():
        if re.match(r"\S+\.$", line):
            suite = line
        elif suite and line.startswith("  "):
            names.append(suite + line.split()[0])
    threads = max(len(os.sched_getaffinity(0)) // TESTS_AT_ONCE, 1)
    environment = {**run.native, "OMP_NUM_THREADS": str(threads)}

    def run_one(one):
        return run.command([test, f"--gtest_filter={one}"], environment=environment)

    with concurrent.futures.ThreadPoolExecutor(TESTS_AT_ONCE) as pool:
        ended = dict(zip(names, pool.map(run_one, names)))
    text = "".join(text for _, text in ended.values())
    text += "".join(f"[  FAILED  ] {one}\n" for one, (status, printed) in ended.items()
                    if status not in (0, None) and "[  FAILED  ]" not in printed)
    late = [one for one, (status, _) in ended.items() if status is None]
    try:
        read_tests(max((abs(status or 0) for status, _ in ended.values()), default=0), text, detail)
    finally:
        detail["out_of_time"] = late
    if late:
        raise Failed(f"out of time: {', '.join(late)}")


def kernels(run, detail):
    """Every kernel's case list against float64 references, on the device."""
    run_tests(run, "kernels_cuda_test", detail)


def host(run, detail):
    """The same case lists on the CPU, whose results parity refers to."""
    if run.packed:
        raise Skipped("programs were packed, and nothing is compiled here")
    compile_programs(run, "kernels_test", ["kernels_test"], detail)
    status, text = run.command([program(run, "kernels_test")], environment=run.native)
    read_tests(status, text, detail)


def engine(run, detail):
    """Training of every kind against the CPU, states from device to device."""
    run_tests(run, "engine_cuda_test", detail)


def ranks(run, detail):
    """Training over NCCL, a rank for each device, against ranks on the CPU."""
    detail["devices"] = len(run.machine["devices"])
    status, text = run.command([program(run, "engine_ranks_cuda_test")], environment=run.native)
    read_tests(status, text, detail)


# Of the loss after each of 20 steps: how far those of CPU and GPU may be apart, by precision.
PARITY = {"fp32": 1e-4, "bf16": 2e-3}
PARITY_MODELS = {
    "gpt2": ["--layers=4", "--width=256", "--heads=4"],
    "llama": ["--family=llama", "--layers=4", "--width=256", "--heads=8", "--kv-heads=2",
              "--mlp-width=704"],
}


def parity(run, detail):
    """Twenty training steps on the CPU and on the GPU, loss by loss."""
    bench = program(run, "engine_bench")
    wrong = []
    for family, model in PARITY_MODELS.items():
        for precision, allowed in PARITY.items():
            losses = {}
            for device in ("cpu", "cuda"):
                status, text = run.command(
                    [bench, *model, "--context=256", "--batch=4", "--warmup=0", "--steps=20",
                     f"--precision={precision}", f"--device={device}", "--threads=8"],
                    environment=run.native)
                if status != 0:
                    raise Failed(f"{family} in {precision} on {device}: "
                                 + ("out of time" if status is None else last_lines(text, "", 2)))
                losses[device] = json.loads(text.splitlines()[-1])["losses"]
            worst = max((abs(a - b) / abs(a) for a, b in zip(losses["cpu"], losses["cuda"])),
                        key=lambda share: math.inf if math.isnan(share) else share)
            detail[f"{family} {precision}"] = {**losses, "worst": worst, "allowed": allowed}
            # Also false when a loss is not a number.
            if not worst <= allowed or losses["cpu"][-1] == losses["cpu"][0]:
                wrong.append(f"{family} in {precision}: losses differ by {worst:.1e} of their value, "
                             f"allowed {allowed:.0e}")
    if wrong:
        raise Failed("; ".join(wrong))


def sanitizer(run, detail):
    """compute-sanitizer over the kernel tests: accesses, races, barriers, memory never written."""
    tool = machine.compute_sanitizer()
    if tool is None:
        raise Skipped("no compute-sanitizer on this machine")
    test = program(run, "kernels_cuda_test")
    tools = ["memcheck", "racecheck", "synccheck", "initcheck"]
    own = "--gtest_filter=-*ByCudnn*"  # The library's kernels are none of ours.
    options = ["--error-exitcode", "9", "--report-api-errors", "no"]  # Tests provoke some.
    started = {name: run.start([tool, "--tool", name, *options, test, own], run.native)
               for name in tools}
    wrong = []
    for name, process in started.items():
        status, text = run.finish(process)
        found = detail[name] = {}
        try:
            read_tests(status, text, found)
        except Failed as why:
            found["why"] = str(why)
            summary = re.findall(r"ERROR SUMMARY: .*|Device not supported.*", text)
            wrong.append(f"{name}: {(summary or [str(why)])[-1]}")
    if wrong:
        raise Failed("; ".join(wrong))


def bench_json(run, name, command, detail, environment):
    """Runs a benchmark that writes JSON; what it wrote goes into `detail` even when it fails."""
    path = run.build / f"{name}.json"
    path.unlink(missing_ok=True)
    detail["devices_before"] = machine.devices()
    status, text = run.command([*command, "--json", path], environment=environment)
    detail["devices_after"] = machine.devices()
    measured = 0
    with contextlib.suppress(FileNotFoundError, ValueError):  # killed before or while it wrote
        found = detail["results"] = json.loads(path.read_text())
        measured = len(found if isinstance(found, list) else found["cases"])
    if status != 0:
        raise Failed(f"out of time after {measured} cases" if status is None
                     else f"status {status}: {last_lines(text, 'rror', 3)}")


def bench_kernels(run, detail):
    """Time of each kernel on shapes of real steps, compared with copying and a large product."""
    bench_json(run, "bench_kernels",
               [program(run, "kernels_bench"), "--device", "cuda", "--filter", "^(?!attention)",
                "--seconds", "0.02" if run.quick else "0.1"], detail, run.native)


def bench_sparse24(run, detail):
    """2:4 products and MLPs, compared with dense ones and cuSPARSELt."""
    bench_json(run, "bench_sparse24",
               [torch_python(), run.root / "tests/bench/sparse24_vs_pytorch", "--bench",
                program(run, "sparse24_bench")], detail, torch_environment(run))


def torch_environment(run):
    """Of a program in PyTorch's interpreter that starts programs of ours."""
    return {"WEFT_LD_LIBRARY_PATH": run.native["LD_LIBRARY_PATH"],
            "TORCHINDUCTOR_CACHE_DIR": str(run.build / "inductor")}


def torch_python():
    python, version = machine.torch_python()
    if python is None:
        raise Failed(version)
    return python


def bench_attention(run, detail):
    """Attention, forward and backward, compared with the flash and cuDNN back ends of PyTorch."""
    bench_json(run, "bench_attention",
               [torch_python(), run.root / "tests/bench/attention_vs_pytorch", "--bench",
                program(run, "kernels_bench")], detail, torch_environment(run))


def start_compiling_for_pytorch(run):
    """torch.compile takes minutes, which the build of our own code can share."""
    python, _ = machine.torch_python()
    if "bench-step" in run.stages and python and run.machine["devices"]:
        run.compiling = run.start(
            ["nice", python, run.root / "tests/bench/gpu_vs_pytorch", "--warm", "--python", python,
             "--binaries", run.build / "bin"], torch_environment(run))


def pytorch(run, detail):
    """Waits until PyTorch has compiled what it will run: nothing else may run meanwhile."""
    if run.compiling is None:
        raise Skipped("nothing is being compiled: no PyTorch, or no step to measure")
    status, text = run.finish(run.compiling)
    run.compiling = None
    if status != 0:
        raise Failed("out of time; the steps compile again" if status is None
                     else last_lines(text, "Error", 3))


def bench_step(run, detail):
    """Whole training steps of ours and of PyTorch with torch.compile, and FP8 and bf16, in turns."""
    python = torch_python()
    bench_json(run, "bench_step",
               [python, run.root / "tests/bench/gpu_vs_pytorch", "--python", python, "--binaries",
                run.build / "bin"], detail, torch_environment(run))


# What is worth most comes first: the limits together are more than the whole run has. Nothing runs
# while a stage measures, so PyTorch has compiled before.
STAGES = [
    Stage("build", build, 240, 200, devices=0),
    Stage("kernels", kernels, 60, 40, targets=["kernels_cuda_test"]),
    Stage("engine", engine, 60, 40, targets=["engine_cuda_test"]),
    Stage("ranks", ranks, 60, 40, devices=2, targets=["engine_ranks_cuda_test"]),
    Stage("parity", parity, 40, 30, targets=["engine_bench"]),
    Stage("pytorch", pytorch, 60),
    Stage("bench-step", bench_step, 180, targets=["engine_bench"]),
    Stage("bench-attention", bench_attention, 60, targets=["kernels_bench"]),
    Stage("bench-kernels", bench_kernels, 60, 30, targets=["kernels_bench"]),
    Stage("bench-sparse24", bench_sparse24, 40, targets=["sparse24_bench"]),
    Stage("sanitizer", sanitizer, 110, targets=["kernels_cuda_test"]),
    Stage("host", host, 60, devices=0, targets=["kernels_test"], builds=True),
]
