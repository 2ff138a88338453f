#!/usr/bin/env python3
"""Writes testdata/{gpt2,llama}/preference: what direct preference optimisation makes of the models in
start/ (make_fixtures.py), in float64 with PyTorch and transformers.

  pairs.json  beta and label_smoothing; pairs of token ids: prompt, chosen and rejected; the loss and
              the reward margin of each of 20 steps on two pairs each, in turn, before its update
  trained/    the model after the steps

The loss is that of TRL's DPOTrainer (loss_type sigmoid): with l = log-probability of the chosen
answer less that of the rejected one, z = beta (l - l of the model at the start), it is
-(1 - s) log sigmoid(z) - s log sigmoid(-z), a mean over the pairs. Needs torch, transformers and
safetensors; run it by hand when the fixtures are to change.
"""

import json

import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM

from make_fixtures import CLIP, FOLDER, STEPS, optimizer_of, save

PAIRS, PER_STEP, BETA, SMOOTHING = 6, 2, 0.5, 0.1
PROMPTS, ANSWERS = (3, 8), (2, 12)  # lengths, [low, high)


def log_probability(model, prompt, answer):
    logits = model(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0, :-1]
    of_tokens = logits.log_softmax(-1)[len(prompt) - 1:]
    return of_tokens.gather(-1, torch.tensor(answer)[:, None]).sum()


def log_ratio(model, pair):
    return (log_probability(model, pair["prompt"], pair["chosen"])
            - log_probability(model, pair["prompt"], pair["rejected"]))


def write(family):
    folder = FOLDER / family / "preference"
    folder.mkdir(exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(FOLDER / family / "start", attn_implementation="eager").double().eval()
    generator = torch.Generator().manual_seed(5)

    def text(lengths):
        size = torch.randint(*lengths, (), generator=generator)
        return torch.randint(0, model.config.vocab_size, (int(size),), generator=generator).tolist()

    pairs = [{"prompt": text(PROMPTS), "chosen": text(ANSWERS), "rejected": text(ANSWERS)} for _ in range(PAIRS)]
    with torch.no_grad():
        reference = [log_ratio(model, pair) for pair in pairs]
    optimizer = optimizer_of(model)
    losses, margins = [], []
    for step in range(STEPS):
        taken = [(step * PER_STEP + i) % PAIRS for i in range(PER_STEP)]
        z = BETA * torch.stack([log_ratio(model, pairs[i]) - reference[i] for i in taken])
        loss = (-(1 - SMOOTHING) * logsigmoid(z) - SMOOTHING * logsigmoid(-z)).mean()
        losses.append(loss.item())
        margins.append(z.mean().item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    save(model, folder / "trained")
    recorded = {"beta": BETA, "label_smoothing": SMOOTHING, "pairs": pairs, "losses": losses, "margins": margins}
    (folder / "pairs.json").write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    for name in ("gpt2", "llama"):
        write(name)
