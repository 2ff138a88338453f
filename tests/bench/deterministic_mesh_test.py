"""The jobs and the bookkeeping of tests/bench/deterministic_mesh/ranks.py."""

import contextlib
import io
import pathlib
import sys
import types
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "deterministic_mesh"))
sys.dont_write_bytecode = True
import ranks  # noqa: E402


class Ranks(unittest.TestCase):
    def specs(self, how, precision="bf16"):
        return {kind: ranks.spec_of("job", kind, precision, 8, ranks.MESHES[how])
                for kind in ranks.KINDS}

    def test_there_is_a_row_for_each_stage_of_zero_and_for_a_pipeline(self):
        meshes = list(ranks.MESHES.values())
        self.assertEqual([mesh["zero_stage"] for mesh in meshes if "zero_stage" in mesh],
                         [0, 1, 2, 3])
        self.assertEqual([mesh for mesh in meshes if "zero_stage" not in mesh],
                         [{"pipeline_parallel": ranks.RANKS}])
        for how, mesh in ranks.MESHES.items():
            for spec in self.specs(how).values():
                self.assertEqual(spec["resources"]["ranks"], 2)
                self.assertEqual({name: spec["resources"][name] for name in mesh}, mesh)

    def test_both_trainings_of_a_row_differ_in_what_is_measured_alone(self):
        for how in ranks.MESHES:
            specs = self.specs(how)
            mesh = specs["mesh"]["train"]
            self.assertEqual(mesh["logical_micro_batch"], specs["mesh"]["resources"]["micro_batch"])
            # A complete tree of micro-batches, which each of two data-parallel ranks has a half of.
            leaves = mesh["global_batch"] // mesh["logical_micro_batch"]
            self.assertEqual(leaves, ranks.MICRO_BATCHES)
            self.assertEqual(leaves & (leaves - 1), 0)
            del mesh["logical_micro_batch"]
            self.assertEqual((mesh.pop("deterministic"), specs["run"]["train"].pop("deterministic")),
                             ("mesh", "run"))
            self.assertEqual(specs["mesh"], specs["run"])

    def test_the_slow_down_is_the_median_of_turns(self):
        seconds = {"run": [1.0, 2.0, 4.0], "mesh": [1.1, 2.6, 4.8]}
        names = []

        def step_seconds(_, spec):
            names.append(spec["name"])
            return seconds[spec["train"]["deterministic"]][int(spec["name"].split("-")[-1])]

        with mock.patch.object(ranks, "step_seconds", step_seconds):
            row = ranks.measure(None, types.SimpleNamespace(turns=3, steps=8),
                                "data parallel, ZeRO 3", "bf16")
        self.assertEqual(len(set(names)), 6)
        for name in names:
            self.assertRegex(name, r"^data-parallel-zero-3-bf16-(run|mesh)-[012]$")
        self.assertAlmostEqual(row["slowdown"], 0.2)
        self.assertAlmostEqual(row["slowdown_least"], 0.1)
        self.assertAlmostEqual(row["slowdown_most"], 0.3)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            ranks.show([row])
        self.assertIn("| data parallel, ZeRO 3 | bf16 | 2.000 | 2.600 | 20.0 %, 10.0 to 30.0 |",
                      shown.getvalue())


if __name__ == "__main__":
    unittest.main()
