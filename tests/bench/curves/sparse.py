"""2:4 sparse training of the character GPT against dense training and its baselines."""

import statistics

from curves.report import Claim, Panel, Report, Series, changed, fixed
from curves.runs import Run, final_loss

SEEDS = [1, 2, 3]
TAIL = 1 / 6
WITHIN = 0.01  # of the validation loss of dense training


class Sparsity:
    """Every method from the same three seeds, at the same learning rate."""

    name = "sparsity"
    decay = 1e-3

    def __init__(self, base):
        base = changed(base, optimizer={"learning_rate": 4e-3})
        base["model"]["mlp_width"] = 512
        mlp = base["model"]["mlp_width"]

        def sparse(method, tail=0.0, **fields):
            return changed(base, train={"sparsity": {
                "method": method, "decay": self.decay, "mask_interval": 10, "dense_share": tail,
                "require": True, **fields}})

        self.jobs = {
            "dense": changed(base, train={"sparsity": {"method": "measure", "mask_interval": 10}}),
            "half width": changed(base, model={"mlp_width": mlp // 2}),
            "static mask": sparse("static"),
            "SR-STE": sparse("sr_ste"),
            "no decay": sparse("masked_decay", decay=0.0),
            "masked decay": sparse("masked_decay"),
            "masked decay, dense tail": sparse("masked_decay", tail=TAIL),
        }

    def runs(self):
        return [Run(self.run_name(label, seed), changed(job, train={"seed": seed}))
                for label, job in self.jobs.items() for seed in SEEDS]

    @staticmethod
    def run_name(label, seed):
        return "sparsity-" + label.replace(", ", "-").replace(" ", "-").lower() + f"-{seed}"

    def report(self, results):
        found = {label: [results[self.run_name(label, seed)] for seed in SEEDS]
                 for label in self.jobs}
        losses = {label: [final_loss(result) for result in of] for label, of in found.items()}
        mean = {label: statistics.mean(of) for label, of in losses.items()}
        seconds = {label: statistics.median(result["summary"]["seconds"] for result in of)
                   for label, of in found.items()}
        best, dense = "masked decay, dense tail", mean["dense"]
        rows = [["training", "validation loss, mean of three seeds", "range", "beside dense",
                 "seconds"]]
        for label in self.jobs:
            rows.append([label, fixed(mean[label]),
                         f"{fixed(min(losses[label]))} to {fixed(max(losses[label]))}",
                         f"{mean[label] / dense - 1:+.2%}", f"{seconds[label]:.0f}"])

        def by_time(result):
            steps = result["validation"][-1][0]
            each = result["summary"]["seconds"] / steps
            return [[step * each, loss] for step, loss in result["validation"]]

        return Report(
            title="2:4 sparse MLPs",
            text="The character GPT at a rate of 0.004, fully decayed, with MLPs in which two of "
                 "four weights count ([how](../techniques/sparse24.md)): decay "
                 f"{self.decay:g}, masks every 10 steps, a dense tail of a sixth of the steps "
                 "where one is named. Seconds are those of the whole training on one thread, "
                 "two runs at a time.",
            claims=[Claim(f"Masked decay with a dense tail ends within {WITHIN:.0%} of dense "
                          "training.", mean[best] / dense - 1 <= WITHIN),
                    Claim("It ends below SR-STE and below dense MLPs of half the width.",
                          mean[best] < min(mean["SR-STE"], mean["half width"]))],
            table=rows,
            panels=[Panel("", "step", "validation loss, nats a character",
                          [Series(label, found[label][0]["validation"]) for label in self.jobs],
                          y_limits=(1.55, 2.4)),
                    Panel("", "seconds", "validation loss, nats a character",
                          [Series(label, by_time(found[label][0])) for label in self.jobs],
                          y_limits=(1.55, 2.4))])
