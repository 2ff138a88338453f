"""Trains a GPT with PyTorch on random tokens and prints its speed as one JSON object.

The peer of engine_bench: same architecture (GPT-2: pre-norm, tanh GELU, tied embeddings), same
batch, AdamW with decay on matrices, clipping at norm 1, bf16 by autocast or fp32. Uses what
PyTorch offers for speed on a CPU: scaled_dot_product_attention, fused AdamW, torch.compile.
"""

import argparse
import json
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, context):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = math.sqrt(2 * layers) if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 6), ("width", 384), ("heads", 6), ("vocabulary", 8192),
                          ("context", 256), ("batch", 8), ("threads", 2), ("steps", 10),
                          ("warmup", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    model = GPT(arguments.layers, arguments.width, arguments.heads, arguments.vocabulary,
                arguments.context)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model) if arguments.compile else model

    def step():
        tokens = torch.randint(arguments.vocabulary, (arguments.batch, arguments.context))
        targets = torch.randint(arguments.vocabulary, (arguments.batch, arguments.context))
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16"):
            loss = run(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(arguments.warmup):
        loss = step()
    seconds = []
    for _ in range(arguments.steps):
        began = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - began)
    seconds.sort()
    median = seconds[len(seconds) // 2]
    print(json.dumps({
        "framework": f"pytorch {torch.__version__}",
        "variant": "compiled" if arguments.compile else "eager",
        "precision": arguments.precision,
        "parameters": sum(p.numel() for p in model.parameters()),
        "step_seconds": median,
        "tokens_per_second": arguments.batch * arguments.context / median,
        "loss": loss,
    }))


if __name__ == "__main__":
    main()
