#!/usr/bin/env python3
"""Holds the GPU test together where there is no GPU: its options, its logic, what pack.sh collects."""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import machine  # noqa: E402
import report  # noqa: E402
import run as runner  # noqa: E402
import stages  # noqa: E402

ROOT = machine.ROOT
# Headers of these come with a compiler, with CUDA or with NVIDIA's wheels.
COMPILERS_OWN = re.compile(r"^(libc6-dev|linux-libc-dev|libstdc\+\+-\d+-dev|libgcc-\d+-dev)")
CUDA_OWN = re.compile(r"^(cuda|cublas|nccl|cudnn|cusparse|nvml|nvtx3/|mma\.h)")

SMI = """#!/bin/sh
echo "NVIDIA H100 80GB HBM3, 580.1, 9.0, 81559 MiB, 1980 MHz, 2619 MHz, 700.00 W, 30, 345 MHz, 0 %"
"""


# Takes turns as engine_bench and pytorch_transformer.py do; the second argument breaks it.
CONTESTANT = """#!/usr/bin/env python3
import json, sys
if "--layers=48" in sys.argv:
    sys.exit("no memory")
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": [%s] * int(line), "gemm_flops_per_second": 8e14}), flush=True)
print(json.dumps({"model_flops_per_token": 8e8, "parameters": 124e6, "framework": "f", "loss": 3.0,
                  "peak_memory_bytes": 1 << 30}))
"""


def load(path):
    """A program without .py as a module."""
    loader = importlib.machinery.SourceFileLoader(path.name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.name, loader))
    loader.exec_module(module)
    return module


def program(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


class RunTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for patch in (mock.patch.object(runner, "BUILD", self.folder / "build"),
                      mock.patch.dict(os.environ, {"OUT": str(self.folder / "out")}),
                      mock.patch.object(machine, "torch_python", lambda: (None, "none"))):
            patch.start()
            self.addCleanup(patch.stop)

    def new_run(self, device=True):
        options = argparse.Namespace(quick=False, minutes=None)
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        if device:
            program(folder, "nvidia-smi", SMI)
        with mock.patch.dict(os.environ, {"PATH": f"{folder}:{os.environ['PATH']}"}):
            run = runner.Run(options)
        self.addCleanup(run.log.close)
        return run

    def test_devices_are_those_that_nvidia_smi_lists(self):
        run = self.new_run()
        self.assertEqual([d["name"] for d in run.machine["devices"]], ["NVIDIA H100 80GB HBM3"])
        self.assertEqual(machine.architecture(run.machine["devices"][0]), "90a")
        self.assertEqual(machine.architecture({"compute_cap": "8.0"}), "80")

    def test_a_stage_that_fails_is_reported_and_costs_no_other(self):
        def raises(run, detail):
            """Fails in a way nobody thought of."""
            detail["half"] = 1
            raise ValueError("surprise")

        def passes(run, detail):
            """Prints."""
            detail["said"] = run.command(["echo", "hello"])

        run = self.new_run()
        rows = [runner.run_stage(run, stages.Stage("one", raises, 5, 5)),
                runner.run_stage(run, stages.Stage("two", passes, 5, 5))]
        self.assertEqual([row["status"] for row in rows], ["failed", "passed"])
        self.assertIn("surprise", rows[0]["why"])
        self.assertEqual(rows[0]["detail"], {"half": 1})
        self.assertEqual(rows[1]["detail"]["said"], (0, "hello\n"))
        runner.write(run, rows, "command")
        page = (self.folder / "out/results.md").read_text()
        self.assertIn("| one | failed |", page)
        self.assertIn("hello", (self.folder / "out/log.txt").read_text())

    def test_without_a_device_what_needs_one_fails_by_name(self):
        run = self.new_run(device=False)
        with mock.patch.object(machine, "devices", list):
            run.machine["devices"] = []
            row = runner.run_stage(run, stages.Stage("bench", lambda run, detail: None, 5, 5))
        self.assertEqual(row["status"], "failed")
        self.assertIn("no CUDA device", row["why"])

    def test_a_command_ends_with_its_stage_and_keeps_what_it_printed(self):
        def hangs(run, detail):
            """Prints and then waits in a child of its own."""
            status, text = run.command(["sh", "-c", "echo '[ RUN      ] A.B'; sleep 60 & wait"])
            stages.read_tests(status, text, detail)

        run = self.new_run()
        began = time.monotonic()
        row = runner.run_stage(run, stages.Stage("hangs", hangs, 1, 1))
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(row["status"], "failed")
        self.assertIn("out of time in A.B", row["why"])

    def test_stages_share_the_time_of_the_run_and_one_that_finds_none_is_reported(self):
        def sleeps(run, detail):
            """Wants a minute."""
            if run.command(["sleep", "60"])[0] is None:
                raise stages.Failed("out of time")

        run = self.new_run()
        run.deadline = time.monotonic() + 5
        few = runner.run_stage(run, stages.Stage("few", sleeps, 60))
        self.assertRegex(few["why"], r"^\d s were left of 540; hint: --only few, or --minutes$")
        long = runner.run_stage(run, stages.Stage("long", sleeps, 8))
        self.assertEqual((long["status"], long["why"]), ("failed", "out of time"))
        self.assertLess(long["seconds"], 30)
        last = runner.run_stage(run, stages.Stage("last", sleeps, 8))
        self.assertEqual([row["status"] for row in (few, last)], ["no time", "no time"])
        runner.write(run, [few, long, last], "command")
        self.assertIn("| last | no time | 0 | 0 s were left of 540; hint: --only last, or",
                      (self.folder / "out/results.md").read_text())

    def test_a_run_without_time_for_a_stage_does_not_pass(self):
        def passes(run, detail):
            """Does nothing."""

        build = stages.Stage("build", passes, 400, devices=0)
        for minutes, status in (("9", 0), ("0.001", 1)):
            with mock.patch.object(stages, "STAGES", [build]), \
                    mock.patch.object(sys, "argv", ["run.sh", "--minutes", minutes]), \
                    mock.patch.object(runner.signal, "signal"), \
                    contextlib.redirect_stdout(io.StringIO()) as told:
                self.assertEqual(runner.main(), status)
            self.assertIn("passed" if status == 0 else "no time", told.getvalue())

    def test_a_quick_run_leaves_out_what_takes_minutes(self):
        names = [stage.name for stage in stages.STAGES]
        chosen, programs = runner.choose(names, True, 1)
        self.assertEqual([stage.name for stage in chosen],
                         ["build", "kernels", "engine", "ranks", "parity", "bench-kernels"])
        self.assertEqual(programs, ["kernels_cuda_test", "engine_cuda_test", "engine_bench",
                                    "kernels_bench"])

    def test_the_first_stage_builds_what_the_others_will_run(self):
        every = {target for stage in stages.STAGES for target in stage.targets}
        # To build is all that a machine without a device can be asked for.
        self.assertEqual(set(runner.choose(["build"], False, 0)[1]), every - {"kernels_test"})
        self.assertEqual(set(runner.choose(["build"], False, 2)[1]), every - {"kernels_test"})
        self.assertNotIn("engine_ranks_cuda_test", runner.choose(["build"], False, 1)[1])
        self.assertEqual(runner.choose(["parity"], False, 1)[1], ["engine_bench"])
        self.assertEqual(runner.choose(["host"], False, 1)[1], [])

    def test_packed_programs_are_taken_and_nothing_is_compiled(self):
        run = self.new_run()
        run.root, run.targets = self.folder, ["engine_bench", "kernels_bench"]
        pack = self.folder / "build/gpu-pack"
        pack.mkdir(parents=True)
        program(self.folder, "engine_bench", "#!/bin/sh\n")
        with tarfile.open(pack / "programs-90a.tar.xz", "w:xz") as archive:
            archive.add(self.folder / "engine_bench", "engine_bench")
        build = stages.Stage("build", stages.build, 60)
        row = runner.run_stage(run, build)
        self.assertEqual((row["status"], row["why"]), ("failed", "not packed: kernels_bench"))
        run.targets.remove("kernels_bench")
        row = runner.run_stage(run, build)
        self.assertEqual((row["status"], row["detail"]), ("passed", {"packed": True}))
        self.assertTrue(os.access(run.build / "bin/engine_bench", os.X_OK))
        host = runner.run_stage(run, stages.Stage("host", stages.host, 60, builds=True))
        self.assertEqual(host["status"], "skipped")

    def test_a_device_too_few_skips_a_stage(self):
        row = runner.run_stage(self.new_run(), stages.Stage("ranks", stages.ranks, 5, devices=2))
        self.assertEqual((row["status"], row["why"]), ("skipped", "1 CUDA device: it needs 2"))

    def test_a_benchmark_out_of_time_keeps_the_cases_it_wrote(self):
        def bench(run, detail):
            """Writes a case and hangs."""
            run.native = {}
            program(run.build, "bench", "#!/bin/sh\necho '[{\"shape\": \"a\"}]' >$2\nsleep 60\n")
            stages.bench_json(run, "bench", [run.build / "bench"], detail, {})

        row = runner.run_stage(self.new_run(), stages.Stage("bench", bench, 2))
        self.assertEqual((row["status"], row["why"]), ("failed", "out of time after 1 cases"))
        self.assertEqual(row["detail"]["results"], [{"shape": "a"}])

    def test_tests_that_were_skipped_do_not_pass(self):
        detail = {}
        with self.assertRaisesRegex(stages.Failed, "sees no CUDA device"):
            stages.read_tests(0, "[ RUN      ] A.B\na.cc:9: Skipped\nno CUDA device\n"
                              "[  SKIPPED ] A.B (0 ms)\n", detail)
        with self.assertRaisesRegex(stages.Failed, "1 tests: A.C"):
            stages.read_tests(1, "[       OK ] A.B (0 ms)\n[  FAILED  ] A.C (0 ms)\n", detail)
        self.assertEqual((detail["passed"], detail["failed"]), (1, ["A.C"]))
        stages.read_tests(0, "[       OK ] A.B (0 ms)\n", detail)
        # Another reason is reported, and costs nothing.
        stages.read_tests(0, "[       OK ] A.B (0 ms)\n[ RUN      ] A.C\na.cc:9: Skipped\n"
                          "no Hopper\n[  SKIPPED ] A.C (0 ms)\n", detail)
        self.assertEqual((detail["skipped"], detail["skipped_because"]), (["A.C"], ["no Hopper"]))

    def test_a_test_that_crashes_or_hangs_costs_no_other(self):
        run = self.new_run()
        folder = run.build / "bin"
        folder.mkdir(exist_ok=True)
        program(folder, "a_test", """#!/bin/sh
case $1 in
  --gtest_list_tests) printf 'Running main() from a.cc\nA.\n  Works\n  Crashes\n  Hangs\n' ;;
  *Works) printf '[ RUN      ] A.Works\n[       OK ] A.Works (0 ms)\n' ;;
  *Crashes) echo '[ RUN      ] A.Crashes'; kill -SEGV $$ ;;
  *Hangs) echo '[ RUN      ] A.Hangs'; sleep 60 ;;
esac
""")
        row = runner.run_stage(run, stages.Stage(
            "tests", lambda run, detail: stages.run_tests(run, "a_test", detail), 3))
        self.assertEqual((row["status"], row["why"]), ("failed", "1 tests: A.Crashes"))
        self.assertEqual(row["detail"]["passed"], 1)
        self.assertEqual(row["detail"]["out_of_time"], ["A.Hangs"])

    def parity_with(self, cuda):
        """The parity stage where engine_bench reports these losses from the GPU."""
        run = self.new_run()
        folder = run.build / "bin"
        folder.mkdir(exist_ok=True)
        program(folder, "engine_bench", f"""#!/bin/sh
case "$*" in *--device=cuda*) echo '{{"losses": {cuda}}}' ;; *) echo '{{"losses": [3.0, 2.0]}}' ;; esac
""")
        return runner.run_stage(run, stages.Stage("parity", stages.parity, 20, 20))

    def test_losses_of_the_gpu_are_held_to_those_of_the_cpu(self):
        passed = self.parity_with("[3.0, 2.0001]")
        self.assertEqual((passed["status"], len(passed["detail"])), ("passed", 4), passed["why"])
        near = self.parity_with("[3.0, 2.001]")
        self.assertIn("gpt2 in fp32: losses differ by 5.0e-04", near["why"])
        self.assertNotIn("bf16", near["why"])
        self.assertIn("llama in bf16", self.parity_with("[3.0, NaN]")["why"])

    def test_the_page_holds_rates_and_targets_against_what_was_measured(self):
        def case(name, **values):
            return {"name": name, "ms": 2.0, "runs": 9, "unit": "GB/s", "rate": 2000.0, **values}

        bench = {"copy_gbytes_per_s": 3000.0, "gemm_bf16_gflops": 8e5, "gemm_f32_gflops": 4e5,
                 "cases": [case("add/1", share_of_ceiling=0.9), case("rope/2", share_of_ceiling=0.6),
                           {"name": "linear/3", "missing": "Linear: has no CUDA kernel; hint"}]}
        results = {**machine.describe(), "command": "c", "quick": False, "stages": [
            {"stage": "bench-kernels", "status": "passed", "why": "", "seconds": 1,
             "detail": {"results": bench}}]}
        page = report.page(results)
        self.assertIn("| add/1 | 2.000 | 2.00 TB/s | 90% |", page)
        self.assertIn("Linear: has no CUDA kernel", page)
        self.assertIn("| 1 of 2 cases | **missed** |", page)


class StepsTest(unittest.TestCase):
    def test_contestants_take_turns_and_one_that_fails_is_reported(self):
        steps = load(ROOT / "tests/bench/gpu_vs_pytorch")
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            program(folder, "engine_bench", CONTESTANT % "0.1")
            program(folder, "peer.py", CONTESTANT % "0.12")
            arguments = ["gpu_vs_pytorch", "--binaries", name, "--json", f"{name}/out.json",
                         "--python", sys.executable]
            with mock.patch.object(steps, "PEER", folder / "peer.py"), \
                    mock.patch.object(sys, "argv", arguments), \
                    contextlib.redirect_stdout(io.StringIO()), \
                    contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(steps.main(), 1)
            rows = json.loads((folder / "out.json").read_text())
        small, large, llama, fp8 = rows
        self.assertEqual([who for who, _ in small["turns"]], ["weft", "pytorch"] * 4)
        self.assertAlmostEqual(small["ratio"], 1.2)
        self.assertAlmostEqual(small["tokens_per_second"]["weft"], 32 * 1024 / 0.1)
        self.assertAlmostEqual(small["share_of_product"]["weft"], 32 * 1024 * 8e8 / 0.1 / 8e14)
        self.assertIn("status 1", large["error"])
        self.assertEqual([who for who, _ in llama["turns"]],
                         ["weft"] * 2 + ["pytorch"] * 4 + ["weft"] * 2)
        self.assertEqual([who for who, _ in fp8["turns"]],
                         ["weft"] * 2 + ["weft in bf16"] * 4 + ["weft"] * 2)
        page = "\n".join(report.step_section(rows))
        self.assertIn("| gpt2-124m (124 M) | bf16 | pytorch | 327680 | 273067 | 1.20 |", page)
        self.assertIn("| llama-1b (124 M) | fp8 | weft in bf16 | 163840 | 163840 | 1.00 |", page)
        told = {what: (measured, met) for what, _, measured, met in report.step_targets(rows)}
        self.assertEqual(told["llama-1b in FP8"], ("1.00", False))


class ScriptsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        subprocess.run([ROOT / "tests/gpu/pack.sh", folder.name], check=True, capture_output=True)
        archive = cls.folder / "third_party.tar.gz"
        assert archive.stat().st_size < 40 << 20
        cls.pack = cls.folder / "third_party"
        with tarfile.open(archive) as packed:
            packed.extractall(cls.pack)

    def test_the_script_explains_itself_and_refuses_unknown_stages(self):
        script = ROOT / "tests/gpu/run.sh"
        listed = subprocess.run([script, "--list"], capture_output=True, text=True, check=True)
        for stage in stages.STAGES:
            self.assertRegex(listed.stdout, rf"(?m)^{stage.name} .*\w\.$")
        for wrong in (["--only", "nonsense"], ["--quick", "--only", "sanitizer"]):
            refused = subprocess.run([script, *wrong], capture_output=True, text=True)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(wrong[-1], refused.stderr)

    def test_every_target_that_a_stage_asks_for_exists(self):
        rules = "".join(path.read_text() for path in ROOT.glob("*/**/CMakeLists.txt")
                        if "build" not in path.relative_to(ROOT).parts)
        for stage in stages.STAGES:
            for target in stage.targets:
                self.assertRegex(rules, rf"weft_(test|benchmark|binary)\({target}\b", stage.name)

    def test_what_is_packed_is_what_stages_run(self):
        packed, = re.findall(r"^programs=\(([^)]*)\)", (ROOT / "tests/gpu/pack.sh").read_text(), re.M)
        self.assertEqual(set(packed.split()), {target for stage in stages.STAGES
                                               if not stage.builds for target in stage.targets})

    def test_pack_holds_every_header_of_other_projects(self):
        names = {str(path.relative_to(self.pack / "usr/include"))
                 for path in (self.pack / "usr/include").rglob("*")}
        wanted = set()
        for top in ("common", "kernels", "worker/engine", "worker/trainer", "tests/bench",
                    "tests/parity"):
            for path in (ROOT / top).rglob("*"):
                # The service alone reads YAML, answers over HTTP and encrypts.
                if (path.suffix in (".h", ".cc", ".cu")
                        and not path.name.startswith(("yaml", "service_"))
                        and path.parent.name not in ("http", "tls")):
                    wanted |= set(re.findall(r"^#include <([^>]+\.(?:h|hpp))>", path.read_text(),
                                             re.M))
        self.assertIn("nlohmann/json.hpp", wanted)
        others = {name for name in wanted - names if not CUDA_OWN.match(name)}
        self.assertEqual(others - self.compilers_own(others), set(),
                         "hint: name the package in tests/gpu/pack.sh")

    @unittest.skipIf(machine.nvcc() is None, "no nvcc on this machine")
    def test_programs_are_configured_where_nothing_but_the_pack_is_installed(self):
        programs = runner.choose(["build"], False, 0)[1] + ["kernels_test"]
        build = self.folder / "build"
        configured = subprocess.run(
            ["cmake", "--preset", "cuda", "-B", build, "-G", "Unix Makefiles", "-DWEFT_SERVICE=OFF",
             f"-DCMAKE_CUDA_COMPILER={machine.nvcc()}", "-DCMAKE_CUDA_ARCHITECTURES=90a",
             "-DCMAKE_IGNORE_PREFIX_PATH=/usr;/", f"-DCMAKE_PREFIX_PATH={self.pack}/usr",
             f"-DWEFT_TOGETHER={';'.join(programs)}"], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(configured.returncode, 0, configured.stderr)
        folders = (str(self.pack), *(folder for folder in machine.CUDA_FOLDERS if folder))
        for program_name in programs:
            link, = build.rglob(f"{program_name}.dir/link.txt")
            libraries = [word for word in link.read_text().split()
                         if word.startswith("/") and ".so" in word]
            self.assertTrue(any("libdnnl" in library for library in libraries), program_name)
            # Of the compiler itself.
            foreign = {library for library in libraries
                       if not library.startswith(folders) and "gomp" not in library}
            self.assertEqual(foreign, set(), program_name)
        # With the toolkit's headers in its commands nothing that other presets compiled would serve.
        flags = "".join(path.read_text() for path in build.glob("worker/**/flags.make"))
        self.assertIn("-isystem", flags)
        self.assertNotRegex(flags, r"-(I|isystem) ?\S*cuda\S*/include")

    @staticmethod
    def compilers_own(names):
        """Those of the headers that come with a compiler."""
        folders = ["/usr/include", "/usr/include/x86_64-linux-gnu",
                   *map(str, pathlib.Path("/usr/lib/gcc").glob("*/*/include"))]
        paths = {f"{folder}/{name}": name for folder in folders for name in names}
        owners = subprocess.run(["dpkg", "-S", *filter(os.path.exists, paths)],
                                capture_output=True, text=True).stdout
        owned = (line.rsplit(": ", 1) for line in owners.splitlines())
        return {paths[path] for owner, path in owned if COMPILERS_OWN.match(owner)}


if __name__ == "__main__":
    unittest.main()
