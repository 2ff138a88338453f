"""What a machine with a GPU has: compilers, devices, libraries, a Python with PyTorch."""

import datetime
import functools
import glob
import os
import pathlib
import platform
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
CUDA_FOLDERS = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""),
                "/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True),
                "/opt/cuda"]
# Libraries of NVIDIA that the toolkit may lack and Python's wheels may hold.
NVIDIA_LIBRARIES = ["cublasLt", "cublas", "nccl", "cudnn", "cusparse", "cusparseLt"]


def output(command, limit=60):
    """What a command prints, stripped; empty when it fails or does not exist."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=limit,
                              check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def find_tool(name, folders=()):
    """The path of a program on the PATH, in a CUDA toolkit or in `folders`; None when absent."""
    if found := shutil.which(name):
        return found
    for folder in [*(f"{cuda}/bin" for cuda in CUDA_FOLDERS if cuda), *folders]:
        for path in sorted(glob.glob(folder)):
            if os.access(f"{path}/{name}", os.X_OK):
                return f"{path}/{name}"
    return None


def nvcc():
    return find_tool("nvcc")


def nvidia_smi():
    return find_tool("nvidia-smi", ["/usr/local/nvidia/bin", "/usr/lib/wsl/lib"])


def compute_sanitizer():
    return find_tool("compute-sanitizer", [
        *(f"{cuda}/compute-sanitizer" for cuda in CUDA_FOLDERS if cuda),
        "/opt/nvidia/compute-sanitizer*", "/opt/nvidia/*/compute-sanitizer"])


def devices():
    """The GPUs, each with what a report of measurements needs; empty where there are none."""
    fields = ["name", "driver_version", "compute_cap", "memory.total", "clocks.max.sm",
              "clocks.max.mem", "power.limit", "temperature.gpu", "clocks.sm", "utilization.gpu"]
    tool = nvidia_smi()
    text = output([tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]) if tool else ""
    rows = [[value.strip() for value in line.split(",")] for line in text.splitlines()]
    return [dict(zip(fields, row)) for row in rows if len(row) == len(fields)]


def architecture(device):
    """CMAKE_CUDA_ARCHITECTURES of a device: its own, with the features of this generation alone."""
    capability = device["compute_cap"].replace(".", "")
    return capability + ("a" if int(capability) >= 90 else "")


@functools.cache
def torch_python():
    """The interpreter that has PyTorch, and PyTorch's version; None and why not."""
    candidates = [os.environ.get("PYTHON", ""), "python3", "python", *sorted(
        glob.glob("/opt/*/bin/python3") + glob.glob("/opt/*/.venv/bin/python3"))]
    for python in filter(None, candidates):
        if version := output([python, "-c", "import torch; print(torch.__version__)"], 120):
            return python, version.splitlines()[-1]
    return None, "no Python with PyTorch"


@functools.cache
def wheel_folders():
    """Folders of NVIDIA's Python wheels, which hold include/ and lib/."""
    python = torch_python()[0] or "python3"
    text = output([python, "-c", "import nvidia; print('\\n'.join(nvidia.__path__))"])
    return [pathlib.Path(folder) for path in text.splitlines()
            for folder in sorted(glob.glob(f"{path}/*")) if os.path.isdir(f"{folder}/lib")]


def library(name):
    """The file of an NVIDIA library and its folder of headers or None: of the toolkit or a wheel."""
    places = [(f"{cuda}/{lib}", f"{cuda}/include") for cuda in CUDA_FOLDERS if cuda
              for lib in ("lib64", "lib", "targets/x86_64-linux/lib")]
    places += [("/usr/lib/x86_64-linux-gnu", None)]
    places += [(f"{wheel}/lib", f"{wheel}/include") for wheel in wheel_folders()]
    for folder, headers in places:
        if found := sorted(glob.glob(f"{folder}/lib{name}.so*"), key=len):
            return found[0], headers
    return None, None


def commit():
    """Of the tree, or of when tests/gpu/pack.sh ran where git is absent."""
    if text := output(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]):
        return text
    packed = ROOT / "build/gpu-pack/commit"
    return packed.read_text().strip() + " (when packed)" if packed.exists() else "unknown"


def cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def describe():
    """Everything that numbers measured here depend on."""
    found = devices()
    compiler = nvcc()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "devices": found,
        "driver": found[0]["driver_version"] if found else None,
        "cuda": output([compiler, "--version"]).splitlines()[-1] if compiler else None,
        "pytorch": torch_python()[1],
        "compiler": output(["g++", "--version"]).splitlines()[:1],
        "cmake": output(["cmake", "--version"]).splitlines()[:1],
        "c_library": " ".join(platform.libc_ver()),
        "kernel": platform.release(),
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "libraries": {name: library(name)[0] for name in NVIDIA_LIBRARIES},
    }
