#!/usr/bin/env python3
"""Writes testdata/llama/value: what inverse value learning makes of the model in llama/start
(make_fixtures.py) on top of the frozen one in gpt2/start, in float64 with PyTorch and transformers.

  losses.json  logit_penalty; the cross entropy of the sum of both logits and the penalty, of each of
               20 steps on llama/batch.safetensors, before its update
  trained/     the model after the steps

The penalty is logit_penalty times the mean over targets and vocabulary of the squares of the logits
of the model that is trained. Needs torch, transformers and safetensors; run it by hand when the
fixtures are to change.
"""

import json

import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from make_fixtures import CLIP, FOLDER, STEPS, optimizer_of, save

PENALTY = 0.3


def main():
    folder = FOLDER / "llama" / "value"
    folder.mkdir(exist_ok=True)
    base, value = (AutoModelForCausalLM.from_pretrained(FOLDER / family / "start", attn_implementation="eager").double().eval()
                   for family in ("gpt2", "llama"))
    batch = load_file(FOLDER / "llama" / "batch.safetensors")
    tokens, targets = batch["tokens"].long(), batch["targets"].long()
    with torch.no_grad():
        of_base = base(input_ids=tokens, use_cache=False).logits
    optimizer = optimizer_of(value)
    losses, penalties = [], []
    for _ in range(STEPS):
        own = value(input_ids=tokens, use_cache=False).logits
        loss = cross_entropy((of_base + own).flatten(0, 1), targets.flatten(), ignore_index=-1)
        penalty = PENALTY * own[targets >= 0].square().mean()
        losses.append(loss.item())
        penalties.append(penalty.item())
        optimizer.zero_grad()
        (loss + penalty).backward()
        torch.nn.utils.clip_grad_norm_(value.parameters(), CLIP)
        optimizer.step()
    save(value, folder / "trained")
    recorded = {"logit_penalty": PENALTY, "losses": losses, "penalties": penalties}
    (folder / "losses.json").write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
