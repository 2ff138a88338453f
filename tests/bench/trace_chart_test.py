"""tests/bench/trace_chart, with a trace of two ranks and two steps."""

import json
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

SCRIPT = pathlib.Path(__file__).resolve().parent / "trace_chart"
SVG = "{http://www.w3.org/2000/svg}"


def step(rank, start, reduce_at):
    """A step of 10 ms: 3 forward, 5 backward, 2 waiting; its all-reduce takes 4."""
    events = [(0, "forward", 0, 3), (0, "backward", 3, 5), (0, "wait for gradients", 8, 2),
              (0, "step", 0, 10), (2, "all-reduce gradients", reduce_at, 4),
              (2, "receive activations", 0, 9)]
    return [{"ph": "X", "pid": rank, "tid": thread, "name": name, "ts": 1e3 * (start + begin),
             "dur": 1e3 * length} for thread, name, begin, length in events]


class TraceChart(unittest.TestCase):
    def draw(self, *options):
        events = []
        for rank in (0, 1):
            for thread, name in ((0, "phases"), (1, "operations"), (2, "collectives: world")):
                events.append({"ph": "M", "pid": rank, "tid": thread, "name": "thread_name",
                               "args": {"name": name}})
            events += step(rank, 100, reduce_at=4 + rank) + step(rank, 110, reduce_at=6)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
            svg = folder / "step.svg"
            done = subprocess.run([SCRIPT, folder / "trace.json", "--svg", svg, *options],
                                  text=True, capture_output=True)
            return done, svg.read_text() if svg.exists() else ""

    def test_hidden_time_is_what_lies_within_passes(self):
        done, _ = self.draw()
        self.assertEqual(done.stdout.splitlines(),
                         [f"rank {rank}: all-reduce gradients: 4.00 ms, {share} % of it within "
                          "forward and backward passes" for rank, share in ((0, 100), (1, 75))])
        done, _ = self.draw("--step", "1")
        self.assertIn("50 % of it", done.stdout)

    def test_every_event_of_the_step_is_a_box_to_scale(self):
        _, svg = self.draw("--title", "a < b")
        root = xml.etree.ElementTree.fromstring(svg)
        boxes = {}
        for box in root.iter(f"{SVG}rect"):
            title = box.find(f"{SVG}title")
            if title is not None:
                boxes.setdefault(title.text, []).append((float(box.get("x")),
                                                         float(box.get("width"))))
        self.assertEqual({name: len(found) for name, found in boxes.items()},
                         {"forward: 3.00 ms": 2, "backward: 5.00 ms": 2,
                          "wait for gradients: 2.00 ms": 2, "all-reduce gradients: 4.00 ms": 2})
        (begin, width), _ = boxes["forward: 3.00 ms"]
        self.assertAlmostEqual(boxes["all-reduce gradients: 4.00 ms"][1][0],
                               begin + 5 * width / 3, delta=0.02)

    def test_a_step_that_is_not_there_is_refused(self):
        done, svg = self.draw("--step", "2")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("there is no step 2 of all ranks", done.stderr)
        self.assertEqual(svg, "")


if __name__ == "__main__":
    unittest.main()
