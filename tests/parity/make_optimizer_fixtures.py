#!/usr/bin/env python3
"""Writes testdata/optimizers.safetensors: where PyTorch's optimizers take a matrix w and a vector b
in 100 steps of given gradients, in float64.

  start/w, start/b          where they begin
  gradients/w, gradients/b  of each step, the first dimension
  <case>/w, <case>/b        where they end

The rate of step t (from 1) is 0.01 (1 + sin(0.2 t) / 2); w decays by 0.1, b not at all. Muon's
iteration, which PyTorch runs in bfloat16, runs in float64 here. Needs torch and safetensors; run it
by hand when the fixtures are to change.
"""

import math
import pathlib
from unittest import mock

import torch
from safetensors.torch import save_file

FILE = pathlib.Path(__file__).parent / "testdata" / "optimizers.safetensors"
STEPS, RATE, DECAY = 100, 0.01, 0.1


def cases(w, b):
    groups = [{"params": [w], "weight_decay": DECAY}, {"params": [b], "weight_decay": 0.0}]
    optim = torch.optim
    adam = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-6}
    muon = {"lr": RATE, "weight_decay": DECAY, "momentum": 0.95, "ns_steps": 5}
    only_b = [{"params": [b], "weight_decay": 0.0}]
    return {
        "sgd": lambda: [optim.SGD(groups, lr=RATE)],
        "momentum": lambda: [optim.SGD(groups, lr=RATE, momentum=0.9)],
        "nesterov": lambda: [optim.SGD(groups, lr=RATE, momentum=0.9, nesterov=True)],
        "adam": lambda: [optim.Adam(groups, **adam)],
        "adamw": lambda: [optim.AdamW(groups, **adam)],
        "adafactor": lambda: [
            optim.Adafactor(groups, lr=RATE, beta2_decay=-0.8, eps=(1e-30, 1e-3), d=1.0)
        ],
        "muon_original": lambda: [
            optim.Muon([w], nesterov=False, adjust_lr_fn="original", **muon),
            optim.AdamW(only_b, **adam),
        ],
        "muon_match_adamw": lambda: [
            optim.Muon([w], nesterov=True, adjust_lr_fn="match_rms_adamw", **muon),
            optim.AdamW(only_b, **adam),
        ],
    }


def main():
    torch.manual_seed(3)
    start = {"w": torch.randn(12, 8) * 0.5, "b": torch.randn(12) * 0.5}
    # Some of it the same in all steps, so that momentum has something to gather.
    gradients = {k: torch.randn(STEPS, *v.shape) + 0.3 * torch.randn(v.shape)
                 for k, v in start.items()}
    tensors = {f"start/{k}": v for k, v in start.items()}
    tensors |= {f"gradients/{k}": v for k, v in gradients.items()}
    w, b = (start[k].double().clone().requires_grad_() for k in "wb")
    for name in cases(w, b):
        w, b = (start[k].double().clone().requires_grad_() for k in "wb")
        optimizers = cases(w, b)[name]()
        for step in range(STEPS):
            w.grad, b.grad = (gradients[k][step].double() for k in "wb")
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = RATE * (1 + 0.5 * math.sin(0.2 * (step + 1)))
                with mock.patch.object(torch, "bfloat16", torch.float64):
                    optimizer.step()
        tensors |= {f"{name}/w": w.detach().float(), f"{name}/b": b.detach().float()}
    save_file({k: v.contiguous() for k, v in tensors.items()}, FILE)


if __name__ == "__main__":
    main()
