"""Writes gpt2_tiny/: a small random GPT-2 as transformers saves it.

Run: python make_gpt2_tiny.py   (needs torch and transformers)
"""

import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(1)
config = GPT2Config(
    vocab_size=11, n_positions=6, n_embd=8, n_layer=2, n_head=2, n_inner=20,
    bos_token_id=10, eos_token_id=10,
)
model = GPT2LMHeadModel(config)
with torch.no_grad():
    for parameter in model.parameters():
        parameter.normal_(std=0.5)
folder = pathlib.Path(__file__).parent / "gpt2_tiny"
model.save_pretrained(folder)
(folder / "generation_config.json").unlink()
