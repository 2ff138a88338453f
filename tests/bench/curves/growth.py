"""Methods of growth, compared with training from scratch: the jobs that tests/bench/growth trains."""

import copy
import dataclasses
import gzip
import pathlib
import re

from curves.runs import MeasurementError, Run

FAMILIES = ["gpt", "bert", "vit"]
SCALE = "scale"  # the V-cycle alone, on networks of several sizes
# Layers, width, learning rate and what it is.
SCALE_SIZES = ((4, 128, 4e-3, "the best of half, once and twice that"),
               (8, 256, 2e-3, "the best of half, once and twice that"),
               (12, 512, 1e-3, "half that of half the width"))
SCALE_STEPS = 2000
LINUX = pathlib.Path("/usr/share/doc/linux-doc-6.1/Documentation")
BUDGETS = (0.3, 0.5, 0.75, 1.0)  # of the steps
SCHEDULES = ("cosine", "warmup_stable_decay")
DECAY_SHARE = 0.2  # of all steps, over which warmup_stable_decay falls to zero
MOST_RATES = 7  # that are tried with a schedule
TIMED_SHARE = 0.1
TIMED_EVALUATION = 32  # sequences, so that a tenth of the training is a tenth of the time
BRIEF_TIMED_SHARE = 0.005  # enough for the median of the steps
BRIEF_TIMED_STEPS = 4  # of a phase, at least: the first one is left out
# What the authors report to save of such a network at the same quality, by method and family of
# models: see docs/techniques/growth.md.
PUBLISHED = {
    "V-cycle, two levels": {"gpt2": 0.241, "bert": 0.19, "vit": 0.271},
    "V-cycle, three levels": {"bert": 0.516},
    "G_stack": {"gpt2": 0.35},
    "bert2BERT (aki)": {"gpt2": 0.47, "bert": 0.45},
    "SPARKLING": {"gpt2": 0.35},
    "LiGO": {"bert": 0.45},
    "one-layer expansion": {"gpt2": 0.8},
    "zero-layer expansion": {"gpt2": 0.8},
    "one-layer expansion at 80 %": {"gpt2": 0.8},
    "zero-layer expansion at 80 %": {"gpt2": 0.8},
    "AutoProg": {"vit": 0.46},
    "masked structural growth": {"gpt2": 0.29, "bert": 0.44},
    "sequence-length warm-up": {"gpt2": 0.55},
}
# The same as far as we remember it, where no text of the authors that has the figure was at hand.
UNCHECKED = {
    "Apollo": {"gpt2": 0.479, "bert": 0.416},
    "progressive stacking": {"bert": 0.25},
}


@dataclasses.dataclass
class Method:
    """`phases`: of a share of the steps each; or none, and `settings` of the whole job. `note`: how it
    differs from what the authors do."""
    name: str
    phases: list = dataclasses.field(default_factory=list)
    settings: dict = dataclasses.field(default_factory=dict)
    steps: float = 1.0  # without phases
    note: str = ""


def phase(share, **fields):
    """`warmup`: whether a later phase has one of its learning rate."""
    return {"share": share, **fields}


def rates_beyond(losses):
    """What to try after learning rates with these losses, so that the best one has neighbours: the
    next by a factor of two beyond an edge that is best. None where one rate alone is given."""
    best = min(losses, key=losses.get)
    if len(losses) == 1 or len(losses) >= MOST_RATES:
        return []
    if best == min(losses):
        return [best / 2]
    return [2 * best] if best == max(losses) else []


def merged(job, changes):
    job = copy.deepcopy(job)
    for key, value in changes.items():
        job[key] = merged(job.get(key, {}), value) if isinstance(value, dict) else value
    return job


class Family:
    """A network on its data. `tried` has the losses of the learning rates of each schedule before the
    rest is trained; the best is the schedule's, and methods end in the schedule whose best is best.
    Timed runs are on the CPU, all others on `device`. What is `brief` has fewer budgets, one schedule
    and one seed, and its seconds are medians of steps."""

    def __init__(self, name, title, text, job, rates, methods, share, device, brief=False,
                 parameters=None):
        self.name, self.title, self.text = name, title, text
        self.job, self.rates, self.methods = job, rates, methods
        self.device, self.brief, self.most_seeds = device, brief, 1 if brief else None
        self.schedules = SCHEDULES[:1] if brief else SCHEDULES
        self.budgets = BUDGETS[1:] if brief else BUDGETS
        self.timed_share = BRIEF_TIMED_SHARE if brief else TIMED_SHARE
        self.steps = round(job["train"]["steps"] * share)
        self.warmup = round(job["schedule"]["warmup_steps"] * share)
        self.parameters = parameters  # of the blocks, of a network of a study of sizes
        self.tried = {}

    def rate_of(self, kind):
        return min(self.tried[kind], key=self.tried[kind].get)

    @property
    def schedule(self):
        return min(self.schedules, key=lambda kind: self.tried[kind][self.rate_of(kind)])

    @property
    def rate(self):
        return self.rate_of(self.schedule)

    def steps_of(self, share, least=1):
        return max(least, round(self.steps * share))

    def scratch(self, name, budget, kind, seed, rate, **of_run):
        steps = self.steps_of(budget)
        job = merged(self.job, {
            "optimizer": {"learning_rate": rate},
            "schedule": {"kind": kind, "warmup_steps": min(self.warmup, steps // 4),
                         "decay_steps": round(DECAY_SHARE * steps)},
            "train": {"steps": steps, "seed": seed, "eval_every_steps": steps}})
        return self.run(f"{self.name}-{name}", job, **of_run)

    def run(self, name, job, timed=False, may_diverge=False):
        if timed:
            job = merged(job, {"train": {"eval_sequences": TIMED_EVALUATION}})
        if self.device != "cpu" and not timed:
            job = merged(job, {"resources": {"device": self.device}})
        return Run(name, job, timed=timed, may_diverge=may_diverge)

    def rate_run(self, kind, rate):
        name = f"rate-{kind.split('_')[0]}-{rate:g}".replace(".", "-")
        return self.scratch(name, 1, kind, 1, rate, may_diverge=True)

    def baseline_runs(self, budget, seeds):
        """By schedule: a run a seed."""
        def run(kind, seed):
            if (budget, seed) == (1, 1):
                return self.rate_run(kind, self.rate_of(kind))
            name = f"scratch-{kind.split('_')[0]}-{round(100 * budget)}-{seed}"
            return self.scratch(name, budget, kind, seed, self.rate_of(kind))
        return {kind: [run(kind, seed) for seed in seeds] for kind in self.schedules}

    def timed_baseline(self):
        return self.scratch("scratch-timed", self.timed_share, self.schedule, 1, self.rate,
                            timed=True)

    def method_run(self, method, seed, share, suffix, timed=False):
        steps = self.steps_of(share * method.steps)
        warmup = round(self.warmup * share)
        least = BRIEF_TIMED_STEPS if self.brief and timed else 1
        job = merged(self.job, {
            "optimizer": {"learning_rate": self.rate},
            "schedule": {"kind": self.schedule, "warmup_steps": min(warmup, steps // 4),
                         "decay_steps": round(DECAY_SHARE * steps)},
            "train": {"steps": steps, "seed": seed, "eval_every_steps": steps}})
        job = merged(job, {section: {key: value(steps) if callable(value) else value
                                     for key, value in fields.items()}
                           for section, fields in method.settings.items()})
        phases = []
        for i, own in enumerate(method.phases):
            own = copy.deepcopy(own)
            own["steps"] = self.steps_of(share * own.pop("share"), least)
            own["learning_rate"] = self.rate * own.pop("rate", 1)
            own["schedule"] = self.schedule if i + 1 == len(method.phases) else "constant"
            later = own["steps"] // 50 if own.pop("warmup", True) else 0
            own["warmup_steps"] = min(warmup, own["steps"] // 4) if i == 0 else later
            growth = own.get("growth", {})
            for of_steps in ("ramp", "rewarm"):
                if share_of_steps := growth.pop(of_steps, None):
                    growth[f"{of_steps}_steps"] = max(1, round(share_of_steps * own["steps"]))
            if "fit_steps" in growth:
                growth["fit_steps"] = max(1, round(share * growth["fit_steps"]))
            phases.append(own)
        if phases:
            del job["train"]["steps"]
            job["phases"] = phases
            # A fifth of all steps, as from scratch, as far as the last phase has them.
            decay = round(DECAY_SHARE * sum(own["steps"] for own in phases))
            job["schedule"]["decay_steps"] = min(
                decay, phases[-1]["steps"] - phases[-1]["warmup_steps"])
        slug = "-".join(re.findall(r"[a-z0-9]+", method.name.lower()))
        return self.run(f"{self.name}-{slug}-{suffix}", job, timed=timed, may_diverge=True)

    def run_of(self, method, seed):
        return self.method_run(method, seed, 1, seed)

    def timed_run(self, method):
        return self.method_run(method, 1, self.timed_share, "timed", timed=True)

    def baselines(self, seeds):
        """All runs from scratch, the timed one as well."""
        return [run for budget in self.budgets for runs in self.baseline_runs(budget, seeds).values()
                for run in runs] + [self.timed_baseline()]

    def method_runs(self, seeds):
        return [run for method in self.methods
                for run in [*(self.run_of(method, seed) for seed in seeds), self.timed_run(method)]]

    def described(self, name):
        method = next(method for method in self.methods if method.name == name)
        if not method.phases:
            return f"{self.steps_of(method.steps)} steps"
        model = self.job["model"]
        return "; ".join(
            f"{self.steps_of(own['share'])} of {own.get('layers', model['layers'])} x "
            f"{own.get('width', model['width'])}"
            f"{f', {pixels} pixels' if (pixels := own.get('image_size')) else ''}"
            for own in method.phases)


def half_of(model):
    return {"layers": model["layers"] // 2, "width": model["width"] // 2}


def v_cycle(name, model, rate=2, alpha=0.5, shares=(0.05, 0.5, 0.55), note=""):
    """Of two levels. `rate`: learning rate of the small model, over that of the whole one."""
    first, small, last = shares
    return Method(name, [
        phase(first),
        phase(small, **half_of(model), rate=rate, growth={"method": "coalesce"}),
        phase(last, growth={"method": "decoalesce", "alpha": alpha})], note=note)


def long_v_cycle(name, model, rate=2):
    """With most steps on the small model, and few on the whole one after it."""
    return v_cycle(name, model, rate, shares=(0.05, 1.2, 0.3),
                   note="steps and rates chosen among five, on one seed of GPT")


def methods(model):
    """Those of each network."""
    layers, width = model["layers"], model["width"]
    half = half_of(model)
    quarter = {"layers": layers // 4, "width": width // 4}
    return [
        v_cycle("V-cycle, two levels", model),
        Method("V-cycle, three levels", [
            phase(0.05),
            phase(0.05, **half, growth={"method": "coalesce"}),
            phase(0.4, **quarter, rate=4, growth={"method": "coalesce"}),
            phase(0.4, **half, rate=2, growth={"method": "decoalesce", "alpha": 0.5}),
            phase(0.5, growth={"method": "decoalesce", "alpha": 0.5})]),
        long_v_cycle("V-cycle, two levels, longer small phase", model),
        Method("progressive stacking", [
            phase(0.15, layers=layers // 4),
            phase(0.2, layers=layers // 2, growth={"method": "stack", "depth_order": "stacked"}),
            phase(0.55, growth={"method": "stack", "depth_order": "stacked"})]),
        Method("G_stack", [
            phase(0.3, layers=layers // 4),
            phase(0.6, growth={"method": "stack", "depth_order": "stacked"})]),
        Method("bert2BERT (aki)", [
            phase(0.4, **half),
            phase(0.6, growth={"method": "aki"})],
               note="without its stage of sub-models"),
        Method("SPARKLING", [
            phase(0.4, width=width // 2),
            phase(0.6, warmup=False, growth={"method": "sparkling", "rewarm": 0.02})]),
        Method("LiGO", [
            phase(0.4, **half),
            phase(0.6, growth={"method": "ligo", "fit_steps": 20})]),
        expansion("one-layer expansion", 1, 0.6),
        expansion("one-layer expansion at 80 %", 1, 0.8),
        Method("Apollo", [
            phase(0.05, layers=1),
            phase(0.05, layers=layers // 4, growth={"method": "stack"}),
            phase(0.15, layers=layers // 2, growth={"method": "stack"}),
            phase(0.65, growth={"method": "stack"})],
               {"train": {"sampled_layers": layers}}),
        Method("progressive layer dropping", [],
               {"model": {"stochastic_depth": {"rate": 0.5, "unit": "layer", "gamma": 100}}}),
        Method("masked structural growth", [
            phase(0.3, **half),
            phase(0.6, growth={"method": "msg", "ramp": 0.1})]),
    ]


def expansion(name, layers, at):
    """From so few layers to all, after the share `at` of the steps. The authors have 0.8."""
    return Method(name, [
        phase(at, layers=layers),
        phase(round(1 - at, 2), growth={"method": "stack", "new_blocks": "random"})],
                  note="without muP")


def v_cycle_variants(model):
    """With the settings of the authors' code: alpha of DeiT, the small model's rate of GPT-2."""
    return [v_cycle("V-cycle, two levels, alpha 0.25", model, alpha=0.25),
            v_cycle("V-cycle, two levels, small model's rate x 4", model, rate=4),
            long_v_cycle("V-cycle, two levels, longer small phase, rate x 4", model, rate=4)]


def auto_prog(layers):
    """Four stages whose images and numbers of layers grow from half to all, as far as patches of 7
    pixels allow."""
    grown = {"method": "stack", "new_blocks": "averaged"}
    return Method("AutoProg", [
        phase(0.25, layers=layers // 2, image_size=14),
        phase(0.25, layers=layers * 5 // 8, image_size=21, growth=grown),
        phase(0.25, layers=layers * 7 // 8, image_size=21, growth=grown),
        phase(0.25, growth=grown)],
                  {"train": {"averaging": {"kind": "ema", "decay": 0.98}}},
                  note="sizes given, without growth of augmentation")


def sequence_warmup():
    return Method("sequence-length warm-up", [], {"train": {
        "sequence_warmup_start": 16, "sequence_warmup_steps": lambda steps: steps // 3}})


def base(model, data, batch, steps, **train):
    return {
        "model": model, "data": data,
        "optimizer": {"name": "adamw", "beta2": 0.98, "weight_decay": 0.1},
        "schedule": {"warmup_steps": steps // 20, "final_ratio": 0.0},
        "train": {"steps": steps, "global_batch": batch, "precision": "bf16", "eval_sequences": 0,
                  "log_every_steps": 1000, **train},
        "checkpoint": {"every_steps": 0}, "resources": {"threads_per_rank": 1},
    }


def write_linux(folder):
    """The documentation of Linux in English, one file after the other. `folder` is in the work
    folder. Returns the section `data` of a job."""
    file = folder / "linux.txt"
    if not file.exists():
        texts = [path for path in sorted(LINUX.rglob("*.rst*")) if "translations" not in path.parts]
        if not texts:
            raise MeasurementError(f"nothing in {LINUX}; hint: Debian's linux-doc-6.1")
        folder.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        with open(new, "wb") as out:
            for path in texts:
                with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as text:
                    out.write(text.read() + b"\n")
        new.rename(file)
    return {"train": [f"../../{folder.name}/{file.name}"], "validation_fraction": 0.02,
            "tokenizer": {"vocab_size": 8192}}


def scale_families(data, share, device):
    """GPT of three sizes, on as many tokens."""
    families = []
    for layers, width, rate, origin in SCALE_SIZES:
        model = {"family": "gpt2", "layers": layers, "width": width, "heads": width // 32,
                 "context": 128}
        parameters = 12 * layers * width * width
        families.append(Family(
            f"{SCALE}-{width}", f"GPT of {parameters / 1e6:.1f} M parameters",
            f"GPT-2 of {layers} layers of width {width}, context 128, batch 64, on the documentation "
            f"of Linux; nats a token of its last 2 %. The learning rate is {origin}.",
            base(model, data, 64, SCALE_STEPS), (rate,),
            methods(model)[:2], share, device, brief=True, parameters=parameters))
    return families


def family(name, data, share, device="cpu"):
    if name == "gpt":
        model = {"family": "gpt2", "layers": 8, "width": 128, "heads": 4, "context": 64}
        return Family(name, "GPT", "GPT-2 of 8 layers of width 128, context 64, batch 32, on the King "
                      "James Bible; nats a token of its last 5 %.",
                      base(model, data, 32, 1200), (1.5e-3, 3e-3, 6e-3),
                      [*methods(model), *v_cycle_variants(model),
                       expansion("zero-layer expansion", 0, 0.5),
                       expansion("zero-layer expansion at 80 %", 0, 0.8), sequence_warmup()],
                      share, device)
    if name == "bert":
        # With 2048 entries, rows of 64 and 15 % its loss left the plateau after 1800 of 2400 steps.
        model = {"family": "bert", "layers": 8, "width": 128, "heads": 4, "context": 32}
        data = {**data, "tokenizer": {"vocab_size": 512}, "batching": "pad_uniform",
                "masking": {"probability": 0.3}}
        return Family(name, "BERT", "BERT of 8 layers of width 128, context 32, batch 32, on the verses "
                      "of the King James Bible; nats a masked token of its last 5 %. 512 tokens, short "
                      "rows and 30 % masked, so that the loss soon leaves its first plateau. "
                      "Progressive layer dropping is left out: it needs norms before sub-layers, and "
                      "BERT has them after.",
                      base(model, data, 32, 2400), (5e-4, 1e-3, 2e-3),
                      [method for method in methods(model)
                       if method.name != "progressive layer dropping"], share, device)
    model = {"family": "vit", "layers": 8, "width": 96, "heads": 4, "image_size": 28,
             "patch_size": 7, "image_channels": 1, "classes": 10}
    return Family(name, "ViT", "ViT of 8 layers of width 96, patches of 7 pixels, batch 64, on "
                  "Fashion-MNIST; nats a picture of its test part. Losses of AutoProg are of averaged "
                  "weights.",
                  base(model, data, 64, 1000), (5e-4, 1e-3, 2e-3),
                  [*methods(model), auto_prog(model["layers"])], share, device)
