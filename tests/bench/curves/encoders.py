"""The experiments with encoders: BERT on English text, ViT on images of clothes."""

import pathlib
import re
import subprocess

from curves.report import Claim, Panel, Report, Series, fixed
from curves.runs import MeasurementError, Run, final_loss

FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")


def write_bible(folder):
    """The King James Bible, a verse a line. `folder` is in the work folder. Returns the section
    `data` of a job."""
    file = folder / "kjv.txt"
    if not file.exists():
        try:
            verses = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, text=True,
                                    capture_output=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise MeasurementError(f"no King James Bible: {error}; hint: Debian's bible-kjv")
        folder.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(re.sub(r"(?m)^\w+:\d+ ", "", verses))
        new.rename(file)
    return {"train": [f"../../{folder.name}/{file.name}"], "document_separator": "\n",
            "validation_fraction": 0.05, "tokenizer": {"vocab_size": 2048}}


def pictures():
    """Fashion-MNIST as Debian has it."""
    files = {part: FASHION / f"{name}-images-idx3-ubyte.gz"
             for part, name in (("train", "train"), ("validation", "t10k"))}
    for file in files.values():
        if not file.exists():
            raise MeasurementError(f"no {file}; hint: Debian's dataset-fashion-mnist")
    return {"pixel_mean": 0.286, "pixel_deviation": 0.353,
            **{part: [str(file)] for part, file in files.items()}}


class MaskedLanguageModel:
    """A small BERT learns to fill gaps in the verses of the King James Bible."""

    name = "bert"
    margin = 2.0

    def __init__(self, data):
        self.job = {
            "model": {"family": "bert", "layers": 4, "width": 128, "heads": 4, "context": 64},
            "data": {**data, "batching": "pad_uniform"},
            "optimizer": {"name": "adamw", "learning_rate": 1e-3, "beta2": 0.98,
                          "weight_decay": 0.01},
            "schedule": {"kind": "cosine", "warmup_steps": 200, "final_ratio": 0.1},
            "train": {"steps": 8000, "global_batch": 32, "precision": "bf16",
                      "eval_every_steps": 1000, "eval_sequences": 512, "log_every_steps": 500},
            "checkpoint": {"every_steps": 0},
            "resources": {"threads_per_rank": 1},
        }

    def runs(self):
        return [Run("bert-kjv", self.job)]

    def report(self, results):
        result = results["bert-kjv"]
        summary = result["summary"]
        entropy, loss = summary["unigram_entropy_nats"], final_loss(result)
        return Report(
            title="BERT on English text",
            text="Masked language model on the King James Bible (Debian's bible-kjv), a verse a "
                 f"row: {summary['parameters'] / 1e6:.2f} M parameters in 4 post-norm layers of "
                 "width 128, byte-level BPE of 2048 entries, 8000 steps of 32 verses, AdamW, "
                 "1e-3 by cosine after 200 steps, bf16; the last 5 % of the verses validate.",
            claims=[Claim(f"The loss of unseen verses ends at least {self.margin:g} nats below that "
                          "of a model which knows only how frequent tokens are.",
                          loss < entropy - self.margin)],
            table=[["training loss, last 100 steps", "validation loss", "frequencies alone"],
                   [fixed(summary["train_loss_nats"], 3), fixed(loss, 3), fixed(entropy, 3)]],
            panels=[Panel("", "step", "nats a masked token",
                          [Series("training", result["training"]),
                           Series("validation", result["validation"], markers=True)],
                          level=(entropy, "frequencies alone"))])


class ImageClasses:
    """A small ViT learns the ten classes of Fashion-MNIST."""

    name = "vit"
    accuracy = 0.85

    def __init__(self, data):
        self.job = {
            "model": {"family": "vit", "layers": 4, "width": 64, "heads": 4, "image_size": 28,
                      "patch_size": 7, "image_channels": 1},
            "data": data,
            "optimizer": {"name": "adamw", "learning_rate": 2e-3, "beta2": 0.99,
                          "weight_decay": 0.05},
            "schedule": {"kind": "cosine", "warmup_steps": 100, "final_ratio": 0.01},
            "train": {"steps": 1500, "global_batch": 128, "precision": "bf16",
                      "eval_every_steps": 250, "eval_sequences": 0, "log_every_steps": 500},
            "checkpoint": {"every_steps": 0},
            "resources": {"threads_per_rank": 1},
        }

    def runs(self):
        return [Run("vit-fashion", self.job)]

    def report(self, results):
        result = results["vit-fashion"]
        summary = result["summary"]
        accuracy = summary["validation_accuracy"]
        return Report(
            title="ViT on pictures",
            text="Fashion-MNIST (Debian's dataset-fashion-mnist), 28 x 28 pixels in 16 patches: "
                 f"{summary['parameters'] / 1e6:.2f} M parameters in 4 layers of width 64, 1500 "
                 "steps of 128 pictures (3.2 epochs), AdamW, 2e-3 by cosine after 100 steps, "
                 "bf16, no augmentation; all 10,000 test pictures validate.",
            claims=[Claim(f"It recognises at least {self.accuracy:.0%} of the test pictures.",
                          accuracy >= self.accuracy)],
            table=[["training loss, last 100 steps", "validation loss", "accuracy"],
                   [fixed(summary["train_loss_nats"], 3), fixed(final_loss(result), 3),
                    f"{accuracy:.1%}"]],
            panels=[Panel("", "step", "nats a picture",
                          [Series("training", result["training"]),
                           Series("validation", result["validation"], markers=True)],
                          y_limits=(0.2, 1.5)),
                    Panel("", "step", "right classes of test pictures, %",
                          [Series("accuracy", result["accuracy"], markers=True)])])
