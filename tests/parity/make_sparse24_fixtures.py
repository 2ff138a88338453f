#!/usr/bin/env python3
"""Writes testdata/{gpt2,llama}/sparse24: what 2:4 sparse training makes of the models in start/
(make_fixtures.py) on their batch.safetensors, in float64 with PyTorch and transformers.

  recorded.json        by method, what it trains with; the cross entropy of each of 20 steps, before
                       its update; the share of mask bits that each search but the first changed (none
                       of s_ste, which makes no jump where a mask does)
  trained.safetensors  <method>/<name>: the matrices of the last MLP after the steps, as folders of
                       transformers have them

The methods are those of the papers, with exact gradients of weights. All matrices of the MLPs are
sparse; W is [out, in], m its mask, and gradients pass the mask as if it were not there.

  masked_decay  Hu et al. 2024 (arXiv 2404.01847): m keeps two in each row and each column of a block
                of 4 x 4, the largest sum of magnitudes; decay (1 - m) W is added to the gradients
                once they are clipped; the last steps are dense
  sr_ste        Zhou et al. 2021 (arXiv 2102.04010): m keeps the two largest of four in each row;
                learning rate x decay (1 - m) W is taken off the weights
  s_ste         Hu et al. 2024 (arXiv 2409.09099): b s(W), where s takes the third largest magnitude
                of four in a row off all of them, and b is <W, s(W)> / <s(W), s(W)> of the first W.
                The gate and the up projection are one matrix, as they are for the authors

Needs torch, transformers and safetensors; run it by hand when the fixtures are to change. It fails
where a choice of a mask hangs on rounding.
"""

import itertools
import json
import math

import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils import clip_grad_norm_, parametrize
from transformers import AutoModelForCausalLM

from make_fixtures import CLIP, FOLDER, LEARNING_RATE, STEPS, loss_of, optimizer_of

INTERVAL = 7  # Steps between two searches for masks, with which no choice hangs on rounding.
DECAYS = {"masked_decay": 0.05, "sr_ste": 0.5, "s_ste": 0.0}
DENSE_STEPS = {"masked_decay": 4, "sr_ste": 0, "s_ste": 0}
# How far the best choice is at least before the next one. Weights of float32 are some 1e-7 off.
LEAST_MARGIN = 5e-6

PATTERNS = torch.tensor([
    sum(rows, ()) for rows in itertools.product(
        [row for row in itertools.product((0, 1), repeat=4) if sum(row) == 2], repeat=4)
    if all(sum(column) == 2 for column in zip(*rows))], dtype=torch.float64)
assert len(PATTERNS) == 90


def transposable_mask(weight):
    """The mask, and how far the best sum of a block is before the next one."""
    rows, columns = weight.shape
    blocks = weight.abs().view(rows // 4, 4, columns // 4, 4).transpose(1, 2).reshape(-1, 16)
    best = (blocks @ PATTERNS.T).topk(2)
    mask = PATTERNS[best.indices[:, 0]].view(rows // 4, columns // 4, 4, 4)
    return mask.transpose(1, 2).reshape(rows, columns), (best.values[:, 0] - best.values[:, 1]).min().item()


def row_mask(weight):
    """The mask, and how far the second of four is before the third."""
    fours = weight.abs().view(-1, 4)
    ordered = fours.sort(descending=True)
    mask = torch.zeros_like(fours).scatter(1, ordered.indices[:, :2], 1.0)
    return mask.view_as(weight), (ordered.values[:, 1] - ordered.values[:, 2]).min().item()


def soft_threshold(weight):
    fours = weight.view(-1, 4)
    third = fours.abs().sort(descending=True).values[:, 2:3]
    return (fours.sign() * (fours.abs() - third).clamp(min=0)).view_as(weight)


class StraightThrough(torch.autograd.Function):
    """The sparse weight, whose gradient is that of the weight."""

    @staticmethod
    def forward(ctx, weight, sparse):
        return sparse.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class SparseWeight(torch.nn.Module):
    """Of a layer whose weight is [out, in], or the transpose of that."""

    def __init__(self, method, transposed):
        super().__init__()
        self.method, self.transposed = method, transposed
        self.mask, self.scale, self.sparse = None, None, True

    def turned(self, weight):
        return weight.T.contiguous() if self.transposed else weight

    def search(self, weight):
        """Share of the bits that change, or None at first, and the margin of the choice."""
        of = transposable_mask if self.method == "masked_decay" else row_mask
        mask, margin = of(self.turned(weight.detach()))
        flips = None if self.mask is None else (mask != self.mask).double()
        self.mask = mask
        return flips, margin

    def left_out(self, weight):
        """(1 - m) W"""
        return (1 - self.turned(self.mask)) * weight.detach()

    def forward(self, weight):
        if not self.sparse:
            return weight
        own = self.turned(weight.detach())
        sparse = self.scale * soft_threshold(own) if self.method == "s_ste" else self.mask * own
        return StraightThrough.apply(weight, self.turned(sparse))


def layers_of(model):
    """Those of the MLPs by name; each list is one matrix."""
    if model.config.model_type == "gpt2":
        return [[(f"transformer.h.{i}.mlp.{name}", getattr(block.mlp, name))]
                for i, block in enumerate(model.transformer.h) for name in ("c_fc", "c_proj")]
    return [[(f"model.layers.{i}.mlp.{name}", getattr(block.mlp, name)) for name in names]
            for i, block in enumerate(model.model.layers)
            for names in (("gate_proj", "up_proj"), ("down_proj",))]


def set_scales(matrices, transposed):
    for matrix in matrices:
        weights = [layer.parametrizations.weight.original.detach() for _, layer in matrix]
        whole = torch.cat([w.T if transposed else w for w in weights]).contiguous()
        shrunk = soft_threshold(whole)
        scale = (whole * shrunk).sum() / shrunk.square().sum()
        for _, layer in matrix:
            layer.parametrizations.weight[0].scale = scale


def train(family, method):
    model = AutoModelForCausalLM.from_pretrained(
        FOLDER / family / "start", attn_implementation="eager").double().eval()
    batch = load_file(FOLDER / family / "batch.safetensors")
    tokens, targets = batch["tokens"].long(), batch["targets"].long()
    matrices, transposed = layers_of(model), family == "gpt2"
    layers = [pair for matrix in matrices for pair in matrix]
    for _, layer in layers:
        parametrize.register_parametrization(layer, "weight", SparseWeight(method, transposed), unsafe=True)
    if method == "s_ste":
        set_scales(matrices, transposed)
    weights = [(layer.parametrizations.weight.original, layer.parametrizations.weight[0]) for _, layer in layers]
    optimizer = optimizer_of(model)
    losses, flip_rates, margin = [], [], math.inf
    for step in range(STEPS):
        sparse = step < STEPS - DENSE_STEPS[method]
        if method != "s_ste" and step % INTERVAL == 0:
            found = [source.search(weight) for weight, source in weights]
            if step > 0:  # Those of the first weights are exact.
                margin = min(margin, *(each for _, each in found))
                flip_rates.append(torch.cat([flips.flatten() for flips, _ in found]).mean().item())
        for _, source in weights:
            source.sparse = sparse
        loss = loss_of(model, tokens, targets)[1]
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), CLIP)
        with torch.no_grad():
            decays = [] if method == "s_ste" or not sparse else [
                DECAYS[method] * source.left_out(weight) for weight, source in weights]
            if method == "masked_decay":
                for (weight, _), decay in zip(weights, decays):
                    weight.grad.add_(decay)
            optimizer.step()
            if method == "sr_ste":
                for (weight, _), decay in zip(weights, decays):
                    weight.sub_(LEARNING_RATE * decay)
    print(f"{family}, {method}: masks are {margin:.1e} apart, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    if margin < LEAST_MARGIN:
        raise SystemExit(f"{family}, {method}: a mask hangs on rounding; take another INTERVAL")
    last = layers[-len(layers) // 2:]
    trained = {f"{method}/{name}.weight": layer.parametrizations.weight.original.detach().float().contiguous()
               for name, layer in last}
    recorded = {"decay": DECAYS[method], "mask_interval": INTERVAL,
                "dense_share": DENSE_STEPS[method] / STEPS, "losses": losses, "flip_rates": flip_rates}
    return recorded, trained


def main():
    torch.set_num_threads(1)
    for family in ("gpt2", "llama"):
        folder = FOLDER / family / "sparse24"
        folder.mkdir(exist_ok=True)
        recorded, tensors = {}, {}
        for method in DECAYS:
            recorded[method], trained = train(family, method)
            tensors |= trained
        (folder / "recorded.json").write_text(json.dumps(recorded) + "\n")
        save_file(tensors, folder / "trained.safetensors")


if __name__ == "__main__":
    main()
