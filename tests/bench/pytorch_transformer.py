"""Trains a GPT or a Llama with PyTorch on random tokens and prints its speed as one JSON object.

The peer of engine_bench: same architecture (GPT-2: pre-norm, tanh GELU, tied embeddings; Llama:
RMS norms, rotary positions, SwiGLU, grouped queries, a classifier of its own), same batch, AdamW
with decay on matrices, clipping at norm 1, bf16 by autocast or fp32. Uses what
PyTorch offers for speed: scaled_dot_product_attention, fused AdamW, torch.compile, and on a GPU
TF32 in what is left in fp32. With --alternate it takes turns as engine_bench does.
"""

import argparse
import json
import math
import sys
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
    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                scale = math.sqrt(2 * shape.layers) if residual else 1
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class LlamaBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads or shape.heads
        head = shape.width // shape.heads
        self.norm1 = nn.RMSNorm(shape.width, eps=1e-5)
        self.sizes = [shape.width, self.kv_heads * head, self.kv_heads * head]
        self.qkv = nn.Linear(shape.width, sum(self.sizes), bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.norm2 = nn.RMSNorm(shape.width, eps=1e-5)
        self.gate_up = nn.Linear(shape.width, 2 * shape.mlp_width, bias=False)
        self.down = nn.Linear(shape.mlp_width, shape.width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape

        def rotate(t):
            first, second = t.chunk(2, dim=-1)
            return t * cos + torch.cat((-second, first), dim=-1) * sin

        q, k, v = self.qkv(self.norm1(x)).split(self.sizes, dim=2)
        q = rotate(q.view(batch, length, self.heads, -1).transpose(1, 2)).to(v.dtype)
        k = rotate(k.view(batch, length, self.kv_heads, -1).transpose(1, 2)).to(v.dtype)
        v = v.view(batch, length, self.kv_heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(LlamaBlock(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.classifier = nn.Linear(shape.width, shape.vocabulary, bias=False)
        head = shape.width // shape.heads
        angles = torch.outer(torch.arange(shape.context),
                             10000.0 ** (-torch.arange(0, head, 2) / head)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.classifier(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def memory_bytes(field):
    """VmRSS: the resident set now; VmHWM: its largest size since reset_peak_memory."""
    for line in open("/proc/self/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024


def reset_peak_memory():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def gemm_flops_per_second(dtype, device):
    """Best rate of a large square product of random numbers: PyTorch's matrix library here."""
    size, best = 8192 if device == "cuda" else 2048, 0
    a, b = (torch.randn((size, size), device=device).to(dtype) for _ in range(2))
    for _ in range(10):
        synchronize(device)
        began = time.perf_counter()
        torch.mm(a, b)
        synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def peak_memory(device):
    return torch.cuda.max_memory_allocated() if device == "cuda" else memory_bytes("VmHWM")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 6), ("width", 384), ("heads", 6), ("vocabulary", 8192),
                          ("context", 256), ("batch", 8), ("threads", 2), ("steps", 10),
                          ("warmup", 3), ("kv-heads", 0), ("mlp-width", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--family", choices=("gpt2", "llama"), default="gpt2")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--alternate", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high" if arguments.device == "cuda" else "highest")
    memory_before = memory_bytes("VmRSS") if arguments.device == "cpu" else 0
    with torch.device(arguments.device):
        model = (Llama if arguments.family == "llama" else GPT)(arguments)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=3e-4, betas=(0.9, 0.95), fused=True)
    run = torch.compile(model) if arguments.compile else model

    def step():
        tokens, targets = torch.randint(arguments.vocabulary,
                                        (2, arguments.batch, arguments.context),
                                        device=arguments.device)
        with torch.autocast(arguments.device, torch.bfloat16,
                            enabled=arguments.precision == "bf16"):
            loss = run(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def run_steps(count):
        """Seconds of each step; on a GPU, where nobody waits between them, their mean."""
        taken = []
        synchronize(arguments.device)
        start = time.perf_counter()
        for _ in range(count):
            began = time.perf_counter()
            loss = step()
            if arguments.device == "cpu":
                loss = loss.item()
            taken.append(time.perf_counter() - began)
        if arguments.device == "cuda":
            loss = loss.item()
            taken = [(time.perf_counter() - start) / count] * count
        return taken, loss

    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    run_steps(arguments.warmup)
    if arguments.device == "cpu":
        reset_peak_memory()
    if arguments.alternate:
        print("ready", flush=True)
        seconds, most_memory = [], 0
        for line in sys.stdin:
            taken, loss = run_steps(int(line))
            seconds += taken
            most_memory = most_memory or peak_memory(arguments.device)
            print(json.dumps({"seconds": taken, "gemm_flops_per_second":
                              gemm_flops_per_second(dtype, arguments.device)}), flush=True)
    else:
        seconds, loss = run_steps(arguments.steps)
        most_memory = peak_memory(arguments.device)
    seconds.sort()
    median = seconds[len(seconds) // 2]
    print(json.dumps({
        "framework": f"pytorch {torch.__version__}",
        "variant": "compiled" if arguments.compile else "eager",
        "precision": arguments.precision,
        "parameters": sum(p.numel() for p in model.parameters()),
        "step_seconds": median,
        "tokens_per_second": arguments.batch * arguments.context / median,
        "memory_before_bytes": memory_before,
        "peak_memory_bytes": most_memory,
        "loss": loss,
    }))


if __name__ == "__main__":
    main()
