"""Sparse training of the character GPT against dense training: 2:4, pruning, structured matrices."""

import re
import statistics

from curves.gpt import TOKENIZER
from curves.report import Claim, Panel, Report, Series, changed, fixed
from curves.runs import EXPORTED, Run, final_loss, seconds_of, thinned

SEEDS = [1, 2, 3]
TAIL = 1 / 6
WITHIN = 0.01  # of the validation loss of dense training
RATE = 4e-3
FLIP_RATE = "sparse24_flip_rate_ratio"
CORE_LOSS = "core_eval_loss_nats"


class Sparsity:
    """Every 2:4 method from the same three seeds, at the same learning rate."""

    name = "sparsity"
    # Of each method the best of three for the first seed in half of the steps, a factor of about 3 apart.
    decays = {"masked_decay": 3e-3, "sr_ste": 3e-4}
    mlp_width = 256
    other_rates = (2e-3, 8e-3)  # that are tried without masks; the double of the last diverges or loses
    turns = 3  # of timed runs
    timed_steps = 60

    def __init__(self, base):
        base = changed(base, optimizer={"learning_rate": RATE},
                       train={"steps": 2000, "eval_every_steps": 250, "log_every_steps": 1})
        base["model"]["mlp_width"] = self.mlp_width

        def sparse(method, tail=0.0, **fields):
            if method in self.decays:
                fields = {"decay": self.decays[method]} | fields
            return changed(base, train={"sparsity": {
                "method": method, "mask_interval": 10, "dense_share": tail, "require": True,
                **fields}})

        def at(rate):
            return {"optimizer": {"learning_rate": rate}}

        half = changed(base, model={"mlp_width": self.mlp_width // 2})
        self.jobs = {
            "dense": changed(base, train={"sparsity": {"method": "measure", "mask_interval": 10}}),
            **{self.label_at("dense", rate): changed(base, **at(rate)) for rate in self.other_rates},
            "half width": half,
            **{self.label_at("half width", rate): changed(half, **at(rate))
               for rate in self.other_rates},
            "SR-STE": sparse("sr_ste", gradient_estimate="exact"),
            "S-STE": sparse("s_ste"),
            "masked decay of 0": sparse("masked_decay", decay=0.0),
            "masked decay": sparse("masked_decay"),
            "masked decay, dense tail": sparse("masked_decay", tail=TAIL),
            "SLoPe without adapters": sparse("slope", gradient_estimate="exact"),
            "SLoPe, adapters of rank 8": sparse("slope", gradient_estimate="exact",
                                                adapter_rank=8, adapter_share=0.1),
        }

    @staticmethod
    def label_at(label, rate):
        return f"{label}, at {rate:g}"

    def runs(self):
        runs = [Run(self.run_name(label, seed), changed(job, train={"seed": seed}))
                for label, job in self.jobs.items() for seed in SEEDS]
        short = {"schedule": {"warmup_steps": self.timed_steps // 10},
                 "train": {"steps": self.timed_steps, "eval_every_steps": 0}}
        return runs + [Run(self.run_name(label, f"time-{turn}"), changed(job, **short), timed=True)
                       for turn in range(self.turns) for label, job in self.jobs.items()]

    @staticmethod
    def run_name(label, seed):
        return f"sparsity-{re.sub('[^a-z0-9]+', '-', label.lower())}-{seed}"

    def report(self, results):
        found = {label: [results[self.run_name(label, seed)] for seed in SEEDS]
                 for label in self.jobs}
        losses = {label: [final_loss(result) for result in of] for label, of in found.items()}
        mean = {label: statistics.mean(of) for label, of in losses.items()}
        # Of each step: the least of the turns, which what else the machine did has least part in.
        seconds = {label: min(results[self.run_name(label, f"time-{turn}")]["summary"]["seconds"]
                              for turn in range(self.turns)) / self.timed_steps
                   for label in self.jobs}
        best = "masked decay, dense tail"

        def without_masks(label):
            return min(mean[label], *(mean[self.label_at(label, rate)] for rate in self.other_rates))

        dense = without_masks("dense")
        rows = [["training", "validation loss, mean of three seeds", "range", "beside the best dense",
                 "milliseconds a step"]]
        for label in self.jobs:
            rows.append([label, fixed(mean[label]),
                         f"{fixed(min(losses[label]))} to {fixed(max(losses[label]))}",
                         f"{mean[label] / dense - 1:+.2%}", fixed(1e3 * seconds[label], 1)])

        flips = {label: thinned(of[0]["metrics"][FLIP_RATE]) for label, of in found.items()
                 if FLIP_RATE in of[0]["metrics"]}

        def rises_and_falls(label):
            """Most masks change before the half of the steps, and fewer at the end than of dense
            training."""
            points, last_dense = found[label][0]["metrics"][FLIP_RATE], flips["dense"][-1][1]
            peak = max(points, key=lambda point: point[1])[0]
            return peak < points[-1][0] / 2 and flips[label][-1][1] < last_dense

        def by_time(label):
            return [[step * seconds[label], loss] for step, loss in found[label][0]["validation"]]

        return Report(
            title="2:4 sparse MLPs",
            text=f"The character GPT at a rate of {RATE:g}, fully decayed, with MLPs in which two of "
                 f"four weights count ([how](../techniques/sparse24.md)): masks every 10 steps, a "
                 "dense tail of a sixth of the steps where one is named, decays of "
                 f"{self.decays['masked_decay']:g} (masked decay) and {self.decays['sr_ste']:g} "
                 "(SR-STE), the best of three for the first seed in half of the steps. Gradients of "
                 "weights are estimates from two of four tokens, but exact for SR-STE and SLoPe, as "
                 "their papers have them. Without masks two other rates are tried, too; the claims are "
                 "about the best of the three. Three seeds.\n\nA step's time is that of "
                 f"{self.timed_steps} steps of the same "
                 "schedule on one thread, the least of three turns, with mask searches and all "
                 f"else. MLPs this narrow (128 by {self.mlp_width}) are below the sizes at which "
                 "2:4 pays, and wide enough that half the width costs something.",
            claims=[Claim(f"Masked decay with a dense tail ends within {WITHIN:.0%} of dense "
                          "training.", mean[best] / dense - 1 <= WITHIN),
                    Claim("It ends below SR-STE.", mean[best] < mean["SR-STE"]),
                    Claim("It ends below dense MLPs of half the width.",
                          mean[best] < without_masks("half width")),
                    Claim("Masks of masked decay change most before the half of the steps, and at the "
                          "end less than those that dense training would have.",
                          rises_and_falls("masked decay")),
                    Claim("With a decay of 0 they change more at the end than those that dense "
                          "training would have.",
                          flips["masked decay of 0"][-1][1] > flips["dense"][-1][1])],
            table=rows,
            panels=[Panel("", "step", "validation loss, nats a character",
                          [Series(label, found[label][0]["validation"]) for label in self.jobs],
                          y_limits=(1.6, 2.4)),
                    Panel("", "seconds", "validation loss, nats a character",
                          [Series(label, by_time(label)) for label in self.jobs],
                          y_limits=(1.6, 2.4)),
                    Panel("", "step", "flip rate", [Series(label, points)
                                                    for label, points in flips.items()])])


class Densities:
    """Final losses by the share of the weights of the blocks that is trained."""

    name = "densities"
    shares = [2 / 3, 1 / 2, 1 / 4, 1 / 8]
    labels = {2 / 3: "2/3", 1 / 2: "1/2", 1 / 4: "1/4", 1 / 8: "1/8"}
    rewind_step = 50
    fine_tuning = {"steps": 100, "rate": 1e-3}
    mlp_share = 2 / 3  # of the weights of a block

    def __init__(self, base):
        base = changed(base, optimizer={"learning_rate": RATE},
                       train={"steps": 400, "eval_every_steps": 0})
        self.dense = Run("densities-dense", base)

        def pruned(method, distribution):
            return lambda share: changed(base, train={"pruning": {
                "method": method, "distribution": distribution, "density": share}})

        def ticket(rewind_step, **fields):
            def job(share):
                steps = base["train"]["steps"]
                rounds = self.halvings(share)  # half of what is left each
                return changed(base, train={
                    "steps": steps + rounds * (steps - rewind_step),
                    "pruning": {"method": "lottery_ticket", "distribution": "global",
                                "density": share, "rounds": rounds, "rewind_step": rewind_step,
                                **fields}})
            return job

        def structured(kind, of_share):
            return lambda share: changed(base, model={"structured_matrices": {
                "kind": kind, "layers": ["*"], **of_share(share)}})

        def core(every):
            """Of a rank with which the factors have that share of the weights."""
            width = base["model"]["width"]
            sides = (3 + 1) * width + (1 + 1) * width + 2 * (1 + 4) * width
            return lambda share: changed(base, model={"low_rank_core": {
                "rank": round(share * 12 * width ** 2 / sides), "core_every": every}})

        def narrow(share):
            """Blocks of fewer weights: heads stay 32 wide, as few as the share allows."""
            width = {1 / 2: 96, 1 / 4: 64, 1 / 8: 32}[share]
            block = 12 * base["model"]["width"] ** 2 * share
            mlp = max(8, round((block - 4 * width ** 2) / (2 * width) / 8) * 8)
            return changed(base, model={"width": width, "heads": width // 32, "mlp_width": mlp})

        # Exports and imports want a tokenizer.
        tokenizer = base["data"]["train"][0].rsplit("/", 1)[0] + "/" + TOKENIZER
        named = changed(base, data={"tokenizer": {"path": tokenizer}})
        imported = changed(named, model={"import_path": EXPORTED})
        tuned = changed(imported, optimizer={"learning_rate": self.fine_tuning["rate"]},
                        schedule={"warmup_steps": self.fine_tuning["steps"] // 10},
                        train={"steps": self.fine_tuning["steps"], "sparsity": {
                            "method": "sr_ste", "mask_interval": 10, "dense_share": 0.0,
                            "require": True}})
        self.methods = {
            "random": pruned("random", "erk"),
            "magnitude": pruned("magnitude", "global"),
            "SNIP": pruned("snip", "global"),
            "GraSP": pruned("grasp", "global"),
            "SynFlow": pruned("synflow", "global"),
            "SET": pruned("set", "erk"),
            "RigL": pruned("rigl", "erk"),
            "lottery ticket": ticket(self.rewind_step),
            "ticket from step 0": ticket(0),
            "its mask on new weights": ticket(0, restart="reinitialize"),
            "Early-Bird": lambda share: imported,
            "SparseDM": lambda share: tuned,
            "low-rank core": core(2),
            "core alone": core(1),
            "Monarch": structured("monarch", lambda share: {"blocks": round(2 / share)}),
            "Pixelfly": structured("pixelfly", lambda share: {"block_size": 16, "density": share}),
            "narrow": narrow,
        }
        # Early-Bird leaves the attention as it is, and 2:4 MLPs are half of two thirds. Monarch's
        # blocks, squared, divide the width; Pixelfly's diagonal is the least there is.
        of_method = {"random": self.shares, "ticket from step 0": [1 / 2, 1 / 4],
                     "its mask on new weights": [1 / 2, 1 / 4],
                     "Early-Bird": [2 / 3, 1 / 2], "SparseDM": [2 / 3],
                     "Monarch": [1 / 2, 1 / 4], "Pixelfly": [1 / 2, 1 / 4]}
        self.points = [(label, share) for label in self.methods
                       for share in of_method.get(label, self.shares[1:])]
        # What a model comes from before it is trained.
        self.bases = {("SparseDM", 2 / 3): Run(self.run_name("dense for SparseDM", 2 / 3), named)} | {
            ("Early-Bird", share): Run(
                self.run_name("Early-Bird search", share),
                changed(named, model={"structured_pruning": {
                    "method": "early_bird", "interval": 10,
                    "neuron_density": round(1 - (1 - share) / self.mlp_share, 3)}}))
            for share in of_method["Early-Bird"]}

    def halvings(self, share):
        return self.shares.index(share)

    def run_name(self, label, share):
        return (f"densities-{label.replace(' ', '-').lower()}-"
                + self.labels[share].replace("/", "-"))

    def runs(self):
        return [self.dense] + [Run(self.run_name(label, share), self.methods[label](share),
                                   base=self.bases.get((label, share)))
                               for label, share in self.points]

    def report(self, results):
        def found(label, share):
            return results[self.run_name(label, share)]

        def loss(label, share):
            result = found(label, share)
            cores = result["metrics"].get(CORE_LOSS)
            return cores[-1][1] if cores else final_loss(result)

        dense = results[self.dense.name]
        rows = [["weights", *(self.labels[share] for share in self.shares),
                 "seconds at the least, of dense training's"],
                ["all", *[fixed(final_loss(dense))] * len(self.shares), "1.0"]]
        for label in self.methods:
            shares = [share for share in self.shares if (label, share) in self.points]
            least = seconds_of(found(label, shares[-1]))
            rows.append([label, *(fixed(loss(label, share)) if share in shares else ""
                                  for share in self.shares),
                         f"{least / dense['summary']['seconds']:.1f}"])
        rows.append(["the network of the low-rank core", *(
            fixed(final_loss(found("low-rank core", share)))
            if ("low-rank core", share) in self.points else "" for share in self.shares), ""])

        def losses(label):
            return {share: loss(label, share) for share in self.shares
                    if (label, share) in self.points}

        def below(label, other):
            others = losses(other)
            return all(value < others[share] for share, value in losses(label).items())

        return Report(
            title="Loss by density",
            text="The character GPT, 400 steps, when a share of the weights of its blocks is "
                 "trained. [Pruned](../techniques/pruning.md): before the training (random by ERK, "
                 "magnitude, SNIP, GraSP, SynFlow over all matrices together), during it (SET, "
                 "RigL), after trainings that each halve the weights and go back to step "
                 f"{self.rewind_step} (lottery ticket). Its control trains new random weights under "
                 "the mask of a ticket that goes back to step 0.\n\n"
                 "Without neurons that a search has found "
                 "([Early-Bird](../techniques/structured_pruning.md)); fine-tuned to 2:4 sparse "
                 f"MLPs in {self.fine_tuning['steps']} more steps ([SparseDM's rule]"
                 "(../techniques/sparse24.md)); factors of [low rank]"
                 "(../techniques/low_rank_core.md), trained in turns with the whole network or "
                 "alone; [structured](../techniques/structured_matrices.md) (Monarch, Pixelfly in "
                 "blocks of 16); or dense in a narrower network of as many weights in its blocks. "
                 "Seconds count what finding the mask took, searches and the training of what is "
                 "fine-tuned, on one thread.",
            claims=[Claim("RigL ends below random masks at every density.",
                          below("RigL", "random")),
                    Claim("Lottery tickets from step 0 end below their masks on new weights.",
                          below("ticket from step 0", "its mask on new weights")),
                    Claim("Early-Bird tickets end below random masks.",
                          below("Early-Bird", "random")),
                    Claim("2:4 fine-tuning ends below random masks.",
                          below("SparseDM", "random")),
                    Claim("A low-rank core that is trained with its network ends below one that "
                          "is trained alone, at every rank.",
                          below("low-rank core", "core alone"))],
            table=rows,
            panels=[Panel("", "share of the weights", "validation loss, nats a character",
                          [Series(label, sorted(map(list, losses(label).items())), markers=True)
                           for label in self.methods],
                          log_x=True, level=(final_loss(dense), "dense"))])
