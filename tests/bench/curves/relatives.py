"""Relatives of growth: networks within and above the character GPT, and logits that are added to others."""

import statistics

from curves.report import Panel, Report, Series, changed, fixed
from curves.runs import Run, final_loss

SEEDS = [1, 2, 3]
STEPS = 400
RATE = 4e-3
SMALL_LAYERS = 2
SMALL_LOSS = "nested_eval_loss_nats"
PUBLISHED = {
    "branches": "convolutions: about twice the speed of branches that are not merged",
    "majority kernels": "better than plain training, at minimal overhead",
    "nested": "the small one better than trained alone, the whole one at least as good",
}


def base_of(data, steps=STEPS, **model):
    """A job on words, not on characters: value learning needs folders with a tokenizer."""
    return {
        "model": model, "data": data,
        "optimizer": {"name": "adamw", "learning_rate": RATE, "beta2": 0.99, "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "warmup_steps": steps // 10, "final_ratio": 0.1},
        "train": {"steps": steps, "global_batch": 12, "precision": "bf16", "eval_sequences": 0,
                  "eval_every_steps": steps, "log_every_steps": 1000},
        "checkpoint": {"every_steps": 0}, "resources": {"threads_per_rank": 1},
    }


class Relatives:
    """Over-parameterised and nested character GPTs next to plain ones; inverse value learning from the
    King James Bible to Shakespeare."""

    name = "relatives"

    def __init__(self, base, text, bible):
        """`text`: file of tinyshakespeare; `bible`: the section `data` of a job."""
        base = changed(base, optimizer={"learning_rate": RATE},
                       train={"steps": STEPS, "eval_every_steps": STEPS // 4, "precision": "bf16"})
        self.jobs = {
            "plain": base,
            "branches": changed(base, model={
                "over_parameterization": {"kind": "branches", "copies": 3}}),
            "majority kernels": changed(base, model={
                "over_parameterization": {"kind": "majority_kernels", "copies": 3}}),
            "nested": changed(base, train={
                "nested_model": {"layers": SMALL_LAYERS, "weight": 1.0, "joint_share": 1.0}}),
            "its layers alone": changed(base, model={"layers": SMALL_LAYERS}),
        }
        self.value = self.value_run(str(text), {**bible, "tokenizer": {"vocab_size": 512}})

    @staticmethod
    def value_run(text, bible):
        """Adds V, which was trained on top of the small base, to the large one, without training."""
        def network(layers, width):
            return {"family": "gpt2", "layers": layers, "width": width, "heads": width // 32,
                    "context": 64}

        def plays(tokenizer):
            return {"train": [text], "validation_fraction": 0.1, "tokenizer": {"path": tokenizer}}

        def measured(folder):
            """One step at a rate of 0: the loss of the folder as it is."""
            return changed(base_of(plays(folder), steps=1, import_path=folder),
                           optimizer={"learning_rate": 0.0})

        value = base_of(plays("small"), family="llama", layers=2, width=64, heads=2, context=64,
                        untied_classifier=True)
        value["train"]["value_learning"] = {"base": {"import_path": "small"}, "logit_penalty": 1e-3}
        moved = measured("value")
        moved["data"] = plays("large")
        moved["train"]["value_learning"] = {"base": {"import_path": "large"}}
        jobs = {"small": base_of(bible, **network(2, 64)), "large": base_of(bible, **network(4, 128)),
                "value": value, "small-alone": measured("small"), "large-alone": measured("large")}
        inputs = tuple((name, Run(f"relatives-value-{name}", job)) for name, job in jobs.items())
        return Run("relatives-value-moved", moved, inputs=inputs)

    @staticmethod
    def run_name(label, seed):
        return f"relatives-{label.replace(' ', '-')}-{seed}"

    def runs(self):
        return [Run(self.run_name(label, seed), changed(job, train={"seed": seed}))
                for label, job in self.jobs.items() for seed in SEEDS] + [self.value]

    def report(self, results):
        found = {label: [results[self.run_name(label, seed)] for seed in SEEDS]
                 for label in self.jobs}
        losses = {label: [final_loss(result) for result in of] for label, of in found.items()}
        losses["the small one within it"] = [result["metrics"][SMALL_LOSS][-1][1]
                                             for result in found["nested"]]
        # The least of the seeds, which what else the machine did has least part in.
        seconds = {label: min(result["summary"]["seconds"] for result in of)
                   for label, of in found.items()}
        rows = [["training", "validation loss, mean of three seeds", "range",
                 "seconds, of plain training's", "published"]]
        for label in ("plain", "branches", "majority kernels", "nested", "the small one within it",
                      "its layers alone"):
            rows.append([label, fixed(statistics.mean(losses[label])),
                         f"{fixed(min(losses[label]))} to {fixed(max(losses[label]))}",
                         f"{seconds[label] / seconds['plain']:.2f}" if label in seconds else "",
                         PUBLISHED.get(label, "")])
        moved = results[self.value.name]
        of_input = moved["input_losses"]
        for label, loss, said in (
                ("Shakespeare: the small base", of_input["small-alone"], ""),
                ("small base + V", of_input["value"], ""),
                ("the large base", of_input["large-alone"], ""),
                ("large base + V of the small one", final_loss(moved),
                 "V improves larger bases that it was not trained with")):
            rows.append([label, fixed(loss), "", "", said])
        return Report(
            title="Relatives of growth",
            text=f"The character GPT at a rate of {RATE:g}, {STEPS} steps, three seeds. All matrices of "
                 "its blocks as three [branches or copies]"
                 "(../techniques/over_parameterization.md); a [nested network]"
                 f"(../techniques/nested_model.md) of its first {SMALL_LAYERS} layers in all steps, next "
                 "to a network of as many layers that is trained alone.\n\n"
                 "[Value learning](../techniques/value_learning.md): two GPTs (2 layers of width 64, 4 "
                 f"of 128; 512 tokens) learn the King James Bible in {STEPS} steps. V (llama, 2 layers "
                 f"of width 64) learns tinyshakespeare on top of the small one in {STEPS} steps and is "
                 "added to the large one as it is. Losses are of unseen Shakespeare, one seed.",
            claims=[],
            table=rows,
            panels=[Panel("", "step", "validation loss, nats a character",
                          [Series(label, of[0]["validation"], markers=True)
                           for label, of in found.items()])])
