"""The experiments with character GPTs: which jobs they train and what they claim."""

import array
import json
import math

from curves.report import (Claim, Panel, Report, Series, best_rate, by_rate, changed, fixed,
                           rate_series)
from curves.runs import Run, final_loss


TOKENIZER = "tokenizer.json"


def write_tokenizer(numbers, path):
    """The characters as a byte-level BPE without merges: jobs that import a model name a tokenizer.
    They are ASCII; what is not printed has its letter of GPT-2's alphabet of bytes."""
    vocabulary = {character if character > " " else chr(256 + ord(character)): number
                  for character, number in numbers.items()}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    path.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []}}))


def write_characters(text_path, folder):
    """Tokens of nanoGPT's form, a character each: the first 90 % to train, the rest to validate;
    and their TOKENIZER.

    `folder` is in the work folder. Returns the section `data` of a job, and the vocabulary's size.
    """
    text = text_path.read_text(encoding="utf-8")
    numbers = {character: i for i, character in enumerate(sorted(set(text)))}
    border = int(len(text) * 0.9)
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(numbers, folder / TOKENIZER)
    parts = {"train": text[:border], "validation": text[border:]}
    for name, part in parts.items():
        new = folder / f"{name}.bin.new"
        new.write_bytes(array.array("H", [numbers[character] for character in part]).tobytes())
        new.rename(folder / f"{name}.bin")
    data = {name: [f"../../{folder.name}/{name}.bin"] for name in parts}
    return {"format": "nanogpt", **data}, len(numbers)


class CharacterGpt:
    """nanoGPT's setting for a CPU (train_shakespeare_char): the job that the others vary."""

    name = "character_gpt"
    published_loss = 1.88
    tuned_rate = 4e-3

    def __init__(self, data, vocabulary):
        self.job = {
            "model": {"family": "gpt2", "layers": 4, "width": 128, "heads": 4, "context": 64,
                      "vocab_size": vocabulary},
            "data": data,
            "optimizer": {"name": "adamw", "learning_rate": 1e-3, "beta2": 0.99,
                          "weight_decay": 0.1},
            "schedule": {"kind": "cosine", "warmup_steps": 100, "final_ratio": 0.1},
            "train": {"steps": 2000, "global_batch": 12, "precision": "fp32",
                      "eval_every_steps": 250, "eval_sequences": 0, "log_every_steps": 1000},
            "checkpoint": {"every_steps": 0},
            "resources": {"threads_per_rank": 1},
        }

    def runs(self):
        tuned = changed(self.job, optimizer={"learning_rate": self.tuned_rate},
                        train={"precision": "bf16"})
        return [Run("character-fp32", self.job), Run("character-tuned", tuned)]

    def report(self, results):
        as_published, tuned = results["character-fp32"], results["character-tuned"]
        rows = [["job", "training loss, last 100 steps", "validation loss"]]
        for label, result in (("as published", as_published),
                              (f"rate {self.tuned_rate:g}, bf16", tuned)):
            rows.append([label, fixed(result["summary"]["train_loss_nats"]),
                         fixed(final_loss(result))])
        summary = as_published["summary"]
        rows.append(["frequencies of characters alone", "",
                     fixed(summary["unigram_entropy_nats"])])
        return Report(
            title="Character GPT in nanoGPT's setting for a CPU",
            text="tinyshakespeare by characters (65 of them), the first 90 % to train: "
                 f"{summary['parameters'] / 1e6:.2f} M parameters in 4 layers, 4 heads, width "
                 "128, context 64; batch 12, 2000 steps, AdamW, rate 1e-3 by cosine to a tenth "
                 "after 100 steps, beta2 0.99, no dropout, fp32. nanoGPT publishes about "
                 f"{self.published_loss} nats a character, estimated on 240 random sequences; here "
                 "the loss is the mean over the whole validation part.",
            claims=[Claim(f"The validation loss is no more than 0.02 above {self.published_loss}.",
                          final_loss(as_published) <= self.published_loss + 0.02),
                    Claim(f"With a rate of {self.tuned_rate:g}, and in bf16, it is below "
                          f"{self.published_loss}.", final_loss(tuned) < self.published_loss)],
            table=rows,
            panels=[Panel("", "step", "nats a character",
                          [Series("training", as_published["training"]),
                           Series("validation", as_published["validation"], markers=True),
                           Series(f"validation at {self.tuned_rate:g}", tuned["validation"],
                                  markers=True)],
                          y_limits=(1.5, 3.0), level=(self.published_loss, "nanoGPT, published"))])


def beside(reference, results):
    """How far validation losses lie above those of the reference, in %; a series each."""
    losses = dict(map(tuple, reference["validation"]))
    return [Series(name, [[step, 100 * (loss / losses[step] - 1)]
                          for step, loss in result["validation"]], markers=True)
            for name, result in results.items()]


class Precisions:
    """The character GPT again, in every precision."""

    name = "precision"
    names = ["fp32", "bf16", "fp16", "bf16_pure"]
    claimed = ["bf16", "fp16"]
    bound = 0.005

    def __init__(self, base):
        self.job = base

    def runs(self):
        return [Run("character-" + name.replace("_", "-"),
                    changed(self.job, train={"precision": name})) for name in self.names]

    def report(self, results):
        found = {name: results["character-" + name.replace("_", "-")] for name in self.names}
        reference = final_loss(found["fp32"])
        excess = {name: final_loss(found[name]) / reference - 1 for name in self.names}
        gaps = beside(found["fp32"], {name: found[name] for name in self.names[1:]})
        return Report(
            title="Mixed precision",
            text="The character GPT from the same seed on the same data in each precision "
                 "([what each computes in](../techniques/precision.md)).",
            claims=[Claim(f"{name} ends within {self.bound:.1%} of the validation loss of fp32.",
                          abs(excess[name]) <= self.bound) for name in self.claimed],
            table=[["precision", "validation loss", "beside fp32"]] + [
                [f"`{name}`", fixed(final_loss(found[name])), f"{excess[name]:+.2%}"]
                for name in self.names],
            panels=[Panel("", "step", "validation loss, nats a character",
                          [Series(name, found[name]["validation"]) for name in self.names],
                          y_limits=(1.8, 2.8)),
                    Panel("", "step", "validation loss beside fp32, %", gaps,
                          y_limits=(-1.5, 1.5), level=(0, ""))])


class ActivationBits:
    """The character GPT again, with compressed activations."""

    name = "activation_bits"
    bits = [8, 4, 2]
    bound = {8: 0.005, 4: 0.005}

    def __init__(self, base):
        self.job = base

    def runs(self):
        return [Run("character-fp32", self.job)] + [
            Run(f"character-{bits}-bits",
                changed(self.job, resources={"recompute": "none", "activation_bits": bits}))
            for bits in self.bits]

    def report(self, results):
        plain = results["character-fp32"]
        found = {bits: results[f"character-{bits}-bits"] for bits in self.bits}
        excess = {bits: final_loss(result) / final_loss(plain) - 1
                  for bits, result in found.items()}
        names = {f"{bits} bits": result for bits, result in found.items()}
        return Report(
            title="Activations in a few bits",
            text="The character GPT from the same seed on the same data, fp32, with what blocks "
                 "keep for the backward pass in so many bits ([how]"
                 "(../techniques/activation_compression.md)).",
            claims=[Claim(f"{bits} bits end within {bound:.1%} of the validation loss without.",
                          abs(excess[bits]) <= bound) for bits, bound in self.bound.items()],
            table=[["bits", "training loss, last 100 steps", "validation loss", "beside 32"],
                   ["32", fixed(plain["summary"]["train_loss_nats"]), fixed(final_loss(plain)),
                    ""]] + [
                [str(bits), fixed(found[bits]["summary"]["train_loss_nats"]),
                 fixed(final_loss(found[bits])), f"{excess[bits]:+.2%}"] for bits in self.bits],
            panels=[Panel("", "step", "validation loss, nats a character",
                          [Series("32 bits", plain["validation"])] +
                          [Series(name, result["validation"]) for name, result in names.items()],
                          y_limits=(1.8, 2.8)),
                    Panel("", "step", "validation loss beside 32 bits, %", beside(plain, names),
                          level=(0, ""))])


class Optimizers:
    """Each optimizer at its best learning rate of a grid."""

    name = "optimizers"
    rates = {
        "adamw": [2e-3, 4e-3, 8e-3, 16e-3],
        "lion": [4e-4, 8e-4, 16e-4, 32e-4, 64e-4],
        "lamb": [8e-3, 16e-3, 32e-3, 64e-3],
        "muon": [4e-3, 8e-3, 16e-3, 32e-3, 64e-3],
    }
    settings = {
        "adamw": {"beta2": 0.99, "weight_decay": 0.1},
        "lion": {"beta1": 0.9, "beta2": 0.99, "weight_decay": 1.0},
        "lamb": {"beta2": 0.999, "epsilon": 1e-6, "weight_decay": 0.01},
        "muon": {"beta2": 0.99, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True},
    }
    bound = 0.06

    def __init__(self, base):
        job = changed(base, schedule={"warmup_steps": 50},
                      train={"steps": 500, "global_batch": 16, "precision": "bf16",
                             "eval_every_steps": 50, "eval_sequences": 256})
        self.grid = {name: by_rate(f"optimizer-{name}", self.rates[name],
                                   lambda rate, name=name: changed(job, optimizer={
                                       "name": name, "learning_rate": rate,
                                       **self.settings[name]}))
                     for name in self.rates}

    def runs(self):
        return [run for runs in self.grid.values() for run in runs.values()]

    def report(self, results):
        best = {name: best_rate(runs, results) for name, runs in self.grid.items()}
        at_best = {name: results[self.grid[name][rate].name] for name, rate in best.items()}
        losses = {name: final_loss(result) for name, result in at_best.items()}
        inside = all(self.rates[name][0] < rate < self.rates[name][-1]
                     for name, rate in best.items())
        rows = [["optimizer", "best rate", "validation loss", "beside AdamW", "other settings"]]
        for name, loss in losses.items():
            settings = ", ".join(f"{key} {value}".lower()
                                 for key, value in self.settings[name].items())
            rows.append([f"`{name}`", f"{best[name]:g}", fixed(loss),
                         f"{loss / losses['adamw'] - 1:+.1%}", settings])
        return Report(
            title="Optimizers at their best learning rate",
            text="The character GPT for 500 steps of 16 sequences, warm-up over 50, bf16. Each "
                 "rate of a grid in factors of two, one seed.",
            claims=[Claim("The best rate of each optimizer lies inside its grid.", inside),
                    Claim(f"Lion and LAMB end at most {self.bound:.0%} above AdamW.",
                          all(losses[name] <= losses["adamw"] * (1 + self.bound)
                              for name in ("lion", "lamb"))),
                    Claim("Muon ends below AdamW.", losses["muon"] < losses["adamw"])],
            table=rows,
            panels=[Panel("", "learning rate", "final validation loss, nats a character",
                          [rate_series(name, runs, results, 3.0)
                           for name, runs in self.grid.items()], log_x=True),
                    Panel("", "step", "validation loss, nats a character",
                          [Series(f"{name}, {best[name]:g}", result["validation"])
                           for name, result in at_best.items()], y_limits=(1.6, 3.0))])


class Depth:
    """Deep stacks without warm-up."""

    name = "depth"
    rate = 1e-3
    margin = 0.5
    # By name of the run: label, layers, norms, weights, steps of warm-up.
    stacks = {
        "post": ("post-norm", 24, "post", "xavier_uniform", 0),
        "post-warmup": ("post-norm, warm-up", 24, "post", "xavier_uniform", 125),
        "post-shallow": ("post-norm, 4 layers", 4, "post", "xavier_uniform", 0),
        "t-fixup": ("T-Fixup", 24, "none", "t_fixup", 0),
        "rezero": ("ReZero", 24, "none", "rezero", 0),
    }

    def __init__(self, base):
        def job(layers, norm, method, warmup):
            return changed(base,
                           model={"layers": layers, "width": 64, "norm_position": norm,
                                  "initialization": {"method": method}},
                           optimizer={"learning_rate": self.rate},
                           schedule={"kind": "constant", "warmup_steps": warmup},
                           train={"steps": 250, "global_batch": 16, "precision": "bf16",
                                  "eval_every_steps": 0, "eval_sequences": 512})
        self.stack_runs = {key: Run(f"depth-{key}", job(*how), may_diverge=True)
                           for key, (_, *how) in self.stacks.items()}

    def runs(self):
        return list(self.stack_runs.values())

    def report(self, results):
        found = {key: results[run.name] for key, run in self.stack_runs.items()}
        entropy = found["rezero"]["summary"]["unigram_entropy_nats"]
        losses = {key: final_loss(result) for key, result in found.items()}
        return Report(
            title="24 layers without warm-up",
            text="Stacks of width 64 on tinyshakespeare by characters: constant rate "
                 f"{self.rate:g} from the first step, AdamW, batch 16, 250 steps, bf16. Post-norm "
                 "with Xavier weights is where T-Fixup and ReZero start from "
                 "([methods](../techniques/initialization.md)). At this rate it fails with a "
                 "warm-up over half of the steps, too; with 4 layers it trains.",
            claims=[Claim("The post-norm stack of 24 layers learns no more than the frequencies "
                          f"of characters (their entropy is {fixed(entropy, 2)}).",
                          losses["post"] > entropy - 0.1)]
                   + [Claim(f"{self.stacks[key][0]} of 24 layers ends at least {self.margin} nats "
                            "below that.", losses[key] < entropy - self.margin)
                      for key in ("t-fixup", "rezero")],
            table=[["stack", "layers", "norms", "warm-up, steps", "validation loss"]] + [
                [label, str(layers), norm, str(warmup), fixed(losses[key])]
                for key, (label, layers, norm, _, warmup) in self.stacks.items()],
            panels=[Panel("", "step", "training loss, nats a character",
                          [Series(label, found[key]["training"])
                           for key, (label, *_) in self.stacks.items()], y_limits=(2.0, 4.5),
                          level=(entropy, "frequencies alone"))])


class Widths:
    """One learning rate for all widths with muP, one for each without."""

    name = "mup"
    widths = [64, 128, 256]
    rates = [2e-3, 4e-3, 8e-3, 16e-3, 32e-3]
    methods = {"mup": "muP", "gpt2": "plain"}
    deviation = 0.08  # of weights at the smallest width
    bound = 0.05

    def __init__(self, base):
        def job(method, width, rate):
            initialization = {"method": method}
            if method == "mup":
                initialization["base_width"] = self.widths[0]
            return changed(base, model={"width": width, "initialization": initialization,
                                        "initializer_range": self.deviation},
                           optimizer={"learning_rate": rate}, schedule={"warmup_steps": 20},
                           train={"steps": 200, "global_batch": 16, "precision": "bf16",
                                  "eval_every_steps": 0, "eval_sequences": 512})
        self.grid = {(method, width): by_rate(
            f"width-{width}-{method}", self.rates,
            lambda rate, method=method, width=width: job(method, width, rate))
            for method in self.methods for width in self.widths}
        # At its base width muP is the plain network bit for bit.
        self.grid["mup", self.widths[0]] = self.grid["gpt2", self.widths[0]]

    def runs(self):
        return [run for runs in self.grid.values() for run in runs.values()]

    def report(self, results):
        best = {key: best_rate(runs, results) for key, runs in self.grid.items()}

        def loss(method, width, rate):
            return final_loss(results[self.grid[method, width][rate].name])

        # The rate found at the smallest width, used at each.
        found = {method: best[method, self.widths[0]] for method in self.methods}
        cost = {(method, width): loss(method, width, found[method])
                - loss(method, width, best[method, width]) for method, width in self.grid}
        spread = {method: math.log2(max(best[method, width] for width in self.widths)
                                    / min(best[method, width] for width in self.widths))
                  for method in self.methods}
        at_found = [loss("mup", width, found["mup"]) for width in self.widths]
        rows = [["parametrisation", "width", "best rate", "loss there",
                 f"loss at the best rate of width {self.widths[0]}"]]
        for (method, width), rate in best.items():
            rows.append([self.methods[method], str(width), f"{rate:g}",
                         fixed(loss(method, width, rate)),
                         fixed(loss(method, width, found[method]))])
        return Report(
            title="muP: one learning rate for all widths",
            text="The character GPT in three widths, 200 steps of 16 sequences, warm-up over 20, "
                 f"weights of deviation {self.deviation:g}, bf16, one seed. muP has its base at "
                 "width 64, where it is the plain network.",
            claims=[Claim("With muP the best rates of all widths lie within a factor of two.",
                          spread["mup"] <= 1.001),
                    Claim("With muP the rate found at the smallest width costs no other width "
                          f"more than {self.bound} nats, and without muP more than twice that.",
                          max(cost["mup", width] for width in self.widths) <= self.bound
                          and cost["gpt2", self.widths[-1]] > 2 * self.bound),
                    Claim("With muP wider is better at that rate.",
                          at_found == sorted(at_found, reverse=True))],
            table=rows,
            panels=[Panel(label, "learning rate", "final validation loss, nats a character",
                          [rate_series(f"width {width}", self.grid[method, width], results, 3.0)
                           for width in self.widths], log_x=True, y_limits=(1.8, 3.0))
                    for method, label in self.methods.items()])
