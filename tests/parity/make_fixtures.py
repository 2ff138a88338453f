#!/usr/bin/env python3
"""Writes testdata/gpt2: a tiny GPT-2 of transformers with random weights, a batch, and what PyTorch
makes of them in float64: logits, loss, every gradient, and the weights after 20 steps of AdamW.

  start/      the model, as a Hugging Face folder
  gradients/  the same folder form, each "weight" being the gradient of the mean loss
  trained/    the model after the steps
  batch.safetensors   tokens, targets (-1: none), logits, loss
  imported/   a model with its tokenizer, text.txt that makes exactly 6 sequences of 16 tokens, and
              loss.json: the model's loss over all of them

Needs torch, transformers and safetensors; run it by hand when the fixtures are to change.
"""

import copy
import json
import pathlib

import torch
from safetensors.torch import save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel

FOLDER = pathlib.Path(__file__).parent / "testdata" / "gpt2"
SEQUENCES, LENGTH = 3, 20
STEPS, LEARNING_RATE, BETAS, EPSILON, DECAY, CLIP = 20, 1e-3, (0.9, 0.95), 1e-6, 0.1, 1.0


def loss_of(model, tokens, targets):
    logits = model(input_ids=tokens).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1
    )
    return logits, loss


def save(model, name):
    copy.deepcopy(model).float().save_pretrained(FOLDER / name)
    (FOLDER / name / "generation_config.json").unlink(missing_ok=True)


def write_imported():
    """What a job with model.import_path starts from, and the loss of its first step."""
    folder, sequences, length = FOLDER / "imported", 6, 16
    folder.mkdir(exist_ok=True)
    words = ["the shuttle", "flies over", "a warp", "and under", "the weft", "of old looms"]
    text = " ".join(words[i * i % 7 % 6] for i in range(60)) + "."
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=290, special_tokens=["<|endoftext|>"])
    end = tokenizer.token_to_id("<|endoftext|>")
    # As many characters as give the tokens wanted: inputs, and the target of the last, which is the
    # end of the document.
    size = next(n for n in range(len(text))
                if len(tokenizer.encode(text[:n]).ids) == sequences * length)
    tokens = torch.tensor(tokenizer.encode(text[:size]).ids + [end])
    (folder / "text.txt").write_text(text[:size])
    tokenizer.save(str(folder / "tokenizer.json"))

    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=length, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager",
        bos_token_id=end, eos_token_id=end,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)  # far from a fresh model's loss
    save(model, "imported")
    inputs, targets = tokens[:-1].view(sequences, length), tokens[1:].view(sequences, length)
    _, loss = loss_of(model.double(), inputs, targets)
    (folder / "loss.json").write_text(json.dumps({"loss": loss.item()}) + "\n")


def main():
    torch.manual_seed(2)
    write_imported()
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=67, n_positions=24, n_embd=32, n_layer=2, n_head=2, n_inner=96,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager",
        bos_token_id=None, eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model = model.double()  # of float32 weights, which the files hold exactly
    tokens = torch.randint(0, config.vocab_size, (SEQUENCES, LENGTH))
    targets = torch.randint(0, config.vocab_size, (SEQUENCES, LENGTH))
    targets[0, 3] = targets[1, 17] = -1

    save(model, "start")
    logits, loss = loss_of(model, tokens, targets)
    loss.backward()
    save_file(
        {
            "tokens": tokens.int(),
            "targets": targets.int(),
            "logits": logits.detach().float().contiguous(),
            "loss": loss.detach().float(),
        },
        FOLDER / "batch.safetensors",
    )
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for target, source in zip(gradients.parameters(), model.parameters()):
            target.copy_(source.grad)
    save(gradients, "gradients")

    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPSILON,
    )
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, tokens, targets)[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    save(model, "trained")


if __name__ == "__main__":
    main()
