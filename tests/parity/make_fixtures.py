#!/usr/bin/env python3
"""Writes testdata/<family>: tiny models with random weights, a batch, and what PyTorch makes of them
in float64: logits, loss, every gradient, and the weights after 20 steps of AdamW.

  start/      the model, as a Hugging Face folder
  gradients/  the same folder form, each "weight" being the gradient of the mean loss
  trained/    the model after the steps
  llama/expanded/  the same, with each matrix of the MLPs trained as a product of two
  {gpt2,llama,bert_mlm}/dropped/  the gradients, and loss.json, where weights of attention are dropped
                   as kernels/attention/attention_dropout.h says, in step 0 of a job of seed 0
  mixtral/documents/{whole,halves}/  the model after training on documents.json, each document run by
                   itself, so that there is no padding; the balancing loss is of all of them, or of
                   each half of them, by its targets
  batch.safetensors   tokens or pixels, token types and lengths of padded rows, targets (-1: none;
                      classes: one a row), logits (of masked tokens: where targets are), loss
  gpt2/imported/   a model with its tokenizer, text.txt that makes exactly 6 sequences of 16 tokens,
                   and loss.json: the model's loss over all of them
  gpt2/chats/      chats.jsonl for that model, and loss.json: a template that marks what the assistant
                   says, and the model's loss over these tokens, the others having the label -100

The gradients and the training of mixtral are those of the loss with that of load balancing, a mean
over the layers of what transformers computes for each alone.

gpt2_shared is a GPT-2 of three layers with one block between them: its folders hold one block.

Needs torch, transformers and safetensors; run it by hand when the fixtures are to change, with the
families to write (or chats) as arguments, or none for all.
"""

import copy
import json
import math
import pathlib
import sys

import numpy
import torch
from safetensors.torch import save_file
from torch.nn.utils import parametrize
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    BertConfig, BertForMaskedLM, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig,
    MistralForCausalLM, MixtralConfig, MixtralForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, ViTConfig, ViTForImageClassification,
)
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

FOLDER = pathlib.Path(__file__).parent / "testdata"
SEQUENCES, LENGTH = 3, 20
# With which no choice of an expert hangs on rounding: the next one is far behind.
SEEDS = {"mixtral": 80}
DOCUMENT_SEED = 0
DROPOUT = 0.2
STEPS, LEARNING_RATE, BETAS, EPSILON, DECAY, CLIP = 20, 1e-3, (0.9, 0.95), 1e-6, 0.1, 1.0


def loss_of(model, tokens, targets):
    """tokens: those of a causal language model, or all inputs by name. Logits where targets are."""
    inputs = tokens if isinstance(tokens, dict) else {"input_ids": tokens, "use_cache": False}
    logits = model(**inputs).logits
    if isinstance(model, BertForMaskedLM):
        logits, targets = logits[targets >= 0][None], targets[targets >= 0]
    elif logits.dim() == 2:
        logits = logits[None]
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1
    )
    return logits, loss


def objective_of(model, tokens, targets):
    """What is trained: the loss, and that of load balancing where there are experts."""
    return with_balance(model, lambda: loss_of(model, tokens, targets)[1])


def with_balance(model, loss_of_pass):
    """What loss_of_pass computes with the model, and the loss of load balancing where it has experts."""
    if not isinstance(model, MixtralForCausalLM):
        return loss_of_pass()
    config, routed = model.config, []
    # Transformers 4 names a mixture otherwise, as files do.
    mixtures = [getattr(layer, "mlp", None) or layer.block_sparse_moe for layer in model.model.layers]
    hooks = [mixture.gate.register_forward_hook(lambda _, __, out: routed.append(out))
             for mixture in mixtures]
    loss = loss_of_pass()
    for hook in hooks:
        hook.remove()
    logits = [out[0] if isinstance(out, tuple) else out for out in routed]
    balance = [load_balancing_loss_func((layer,), config.num_local_experts, config.num_experts_per_tok)
               for layer in logits]
    return loss + config.router_aux_loss_coef * torch.stack(balance).mean()


def save(model, folder):
    copy.deepcopy(model).float().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def write_imported():
    """What a job with model.import_path starts from, and the loss of its first step."""
    folder, sequences, length = FOLDER / "gpt2" / "imported", 6, 16
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
    save(model, folder)
    inputs, targets = tokens[:-1].view(sequences, length), tokens[1:].view(sequences, length)
    _, loss = loss_of(model.double(), inputs, targets)
    (folder / "loss.json").write_text(json.dumps({"loss": loss.item()}) + "\n")


def write_chats():
    """Conversations whose answers alone are learned, one a row; the longest are cut at the context."""
    folder, imported = FOLDER / "gpt2" / "chats", FOLDER / "gpt2" / "imported"
    folder.mkdir(exist_ok=True)
    template = ("{% for m in messages %}{% if m.role == 'assistant' %}:{% generation %}{{ m.content }}{{ eos_token }}"
                "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}")
    said = [["of looms", "a warp"], ["under", "the weft"], ["the shuttle", "flies over and under"],
            ["a", "b", "the weft", "of old looms and a warp"], ["over", "under", "old", "looms"], ["a warp and the weft", "flies"]]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(imported / "tokenizer.json"), eos_token="<|endoftext|>")
    model = GPT2LMHeadModel.from_pretrained(imported).double().eval()
    length, total, count, lines = model.config.n_positions, 0, 0, []
    for texts in said:
        messages = [{"role": ["user", "assistant"][i % 2], "content": text} for i, text in enumerate(texts)]
        lines.append(json.dumps({"messages": messages}) + "\n")
        whole = tokenizer.apply_chat_template(messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True)
        # One more than the context: the target of the last.
        ids = torch.tensor(whole["input_ids"][:length + 1])
        labels = torch.where(torch.tensor(whole["assistant_masks"][:length + 1]) == 1, ids, -100)[1:]
        logits = model(input_ids=ids[None, :length]).logits[0, :len(labels)]
        total += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
        count += (labels != -100).sum().item()
    (folder / "chats.jsonl").write_text("".join(lines))
    (folder / "loss.json").write_text(json.dumps({"template": template, "loss": total / count, "targets": count}) + "\n")


def gpt2(layers=2):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=67, n_positions=24, n_embd=32, n_layer=layers, n_head=2, n_inner=96,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, attn_implementation="eager",
        bos_token_id=None, eos_token_id=None,
    ))


def gpt2_shared():
    model = gpt2(layers=3)
    block = model.transformer.h[0]
    for i in range(1, 3):
        model.transformer.h[i] = block
    return model


LLAMA = dict(
    vocab_size=67, hidden_size=32, intermediate_size=72, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=24, rms_norm_eps=1e-5,
    tie_word_embeddings=False, attn_implementation="eager", bos_token_id=None, eos_token_id=None,
)


def llama():
    return LlamaForCausalLM(LlamaConfig(**LLAMA))


def llama3():
    rope = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    return LlamaForCausalLM(LlamaConfig(
        **{**LLAMA, "num_key_value_heads": 4, "tie_word_embeddings": True}, rope_parameters=rope,
    ))


def mistral():
    return MistralForCausalLM(MistralConfig(**LLAMA, sliding_window=7))


def mixtral():
    return MixtralForCausalLM(MixtralConfig(
        **LLAMA, experts_implementation="eager", num_local_experts=4, num_experts_per_tok=2,
        router_aux_loss_coef=0.02,
    ))


def qwen2():
    return Qwen2ForCausalLM(Qwen2Config(**{**LLAMA, "num_key_value_heads": 1}))


BERT = dict(
    vocab_size=67, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=80,
    max_position_embeddings=24, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    attn_implementation="eager",
)


def bert_mlm():
    return BertForMaskedLM(BertConfig(**BERT))


def bert_classes():
    return BertForSequenceClassification(BertConfig(**BERT, num_labels=5))


def vit():
    return ViTForImageClassification(ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=80,
        image_size=12, patch_size=4, num_channels=3, num_labels=5, attn_implementation="eager",
    ))


def encoder_batch(model):
    """Inputs by name, targets (labels, or tokens with -1 where none is asked for), and what the
    file needs to say of them. Rows are padded; each row is a pair."""
    labels = torch.tensor([3, 0, 4])
    if isinstance(model, ViTForImageClassification):
        pixels = torch.randn(SEQUENCES, 3, 12, 12)
        return {"pixel_values": pixels.double()}, labels, {"pixels": pixels}
    # Not token 0: PyTorch's BERT does not train its lookups, for it is the padding.
    tokens = torch.randint(1, model.config.vocab_size, (SEQUENCES, LENGTH))
    lengths = torch.tensor([20, 13, 17])
    places = torch.arange(LENGTH)[None].expand(SEQUENCES, -1)
    types = (places >= 9).long()
    mask = (places < lengths[:, None]).long()
    inputs = {"input_ids": tokens, "token_type_ids": types, "attention_mask": mask}
    saved = {"tokens": tokens.int(), "token_types": types.int(), "lengths": lengths.int()}
    if isinstance(model, BertForSequenceClassification):
        return inputs, labels, saved
    asked = (torch.rand(SEQUENCES, LENGTH) < 0.2) & (mask == 1)
    targets = torch.randint(0, model.config.vocab_size, (SEQUENCES, LENGTH))
    return inputs, torch.where(asked, targets, -1), saved


class ProductOfFactors(torch.nn.Module):
    """A weight [out, in] as E^T F, which starts as the weight and an identity on its smaller side."""

    def forward(self, e, f):
        return e.T @ f

    def right_inverse(self, weight):
        out, into = weight.shape
        identity = torch.eye(min(out, into), dtype=weight.dtype)
        return (identity, weight) if out < into else (weight.T.contiguous(), identity)


def expand(model):
    """A copy of a Llama whose MLP matrices are products, and their layers."""
    model = copy.deepcopy(model)
    layers = [layer for block in model.model.layers
              for layer in (block.mlp.gate_proj, block.mlp.up_proj, block.mlp.down_proj)]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", ProductOfFactors())
    return model, layers


FAMILIES = {
    "bert_mlm": bert_mlm, "bert_classes": bert_classes, "vit": vit,
    "gpt2": gpt2, "gpt2_shared": gpt2_shared, "llama": llama, "llama3": llama3,
    "mistral": mistral, "mixtral": mixtral, "qwen2": qwen2,
}


def without_repetition(model):
    """A copy of a model whose layers are one block, with that block alone."""
    model = copy.deepcopy(model)
    layers = getattr(getattr(model, "transformer", None), "h", None)
    if layers is not None and len(layers) > 1 and layers[0] is layers[1]:
        model.transformer.h = torch.nn.ModuleList([layers[0]])
        model.config.n_layer = 1
    return model


def optimizer_of(model):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPSILON,
    )


def train(model, tokens, targets):
    optimizer = optimizer_of(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        objective_of(model, tokens, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()


def of_gradients(model):
    """A copy of a model with the gradients in place of the parameters."""
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for target, source in zip(gradients.parameters(), model.parameters()):
            target.copy_(source.grad)
    return gradients


def write_family(name):
    folder = FOLDER / name
    torch.manual_seed(SEEDS.get(name, 1))
    model = FAMILIES[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model = model.double()  # of float32 weights, which the files hold exactly
    if model.config.model_type in ("bert", "vit"):
        tokens, targets, saved = encoder_batch(model)
    else:
        tokens = torch.randint(0, model.config.vocab_size, (SEQUENCES, LENGTH))
        targets = torch.randint(0, model.config.vocab_size, (SEQUENCES, LENGTH))
        targets[0, 3] = targets[1, 17] = -1
        saved = {"tokens": tokens.int()}

    save(without_repetition(model), folder / "start")
    logits, loss = loss_of(model, tokens, targets)
    objective_of(model, tokens, targets).backward()
    save_file(
        {
            **saved,
            "targets": targets.int(),
            "logits": logits.detach().float().contiguous(),
            "loss": loss.detach().float(),
        },
        folder / "batch.safetensors",
    )
    save(without_repetition(of_gradients(model)), folder / "gradients")
    if name in DROPPED:
        write_dropped(name, model, tokens, targets)

    if name == "mixtral":
        write_documents(model)
    if name == "llama":
        expanded, layers = expand(model)
        train(expanded, tokens, targets)
        for layer in layers:
            parametrize.remove_parametrizations(layer, "weight")
        save(expanded, folder / "expanded")
    train(model, tokens, targets)
    save(without_repetition(model), folder / "trained")


# Tokens of each document. No document has the last token of the vocabulary, which is for padding.
DOCUMENTS, DOCUMENT_STEPS = (20, 3, 11, 2, 14, 7), 12


def balance_of(model, routed):
    """The balancing loss of the tokens of some documents; routed: logits by document and layer."""
    config = model.config
    layers = [torch.cat(of_layer) for of_layer in zip(*routed)]
    return torch.stack([
        load_balancing_loss_func((layer,), config.num_local_experts, config.num_experts_per_tok)
        for layer in layers]).mean()


def step_on_documents(model, documents, parts):
    """Gradients of the mean loss over all targets and of each part's balancing loss, which weighs as
    much as the targets of the part. Returns how far the last expert of any token is before the next."""
    routed, targets, margin = [], sum(len(d) - 1 for d in documents), math.inf
    hooks = [layer.mlp.gate.register_forward_hook(lambda _, inputs, __, gate=layer.mlp.gate: routed.append(
        torch.nn.functional.linear(inputs[0].flatten(0, -2), gate.weight)))
        for layer in model.model.layers]
    loss = 0
    for part in parts:
        of_part = []
        for document in part:
            routed.clear()
            tokens = torch.tensor(document)[None]
            logits = model(input_ids=tokens, use_cache=False).logits[0, :-1]
            loss += torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum") / targets
            of_part.append(list(routed))
            for layer in routed:
                best = layer.sort(descending=True).values
                k = model.config.num_experts_per_tok
                margin = min(margin, (best[:, k - 1] - best[:, k]).min().item())
        weight = sum(len(d) - 1 for d in part) / targets
        loss += model.config.router_aux_loss_coef * weight * balance_of(model, of_part)
    for hook in hooks:
        hook.remove()
    loss.backward()
    return margin


def write_documents(model):
    folder = FOLDER / "mixtral" / "documents"
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(DOCUMENT_SEED)
    documents = [torch.randint(0, model.config.vocab_size - 1, (n,), generator=generator).tolist()
                 for n in DOCUMENTS]
    (folder / "documents.json").write_text(json.dumps(documents) + "\n")
    half = len(documents) // 2
    for name, parts in {"whole": [documents], "halves": [documents[:half], documents[half:]]}.items():
        trained = copy.deepcopy(model)
        trained.zero_grad()
        optimizer = optimizer_of(trained)
        margin = math.inf
        for _ in range(DOCUMENT_STEPS):
            optimizer.zero_grad()
            margin = min(margin, step_on_documents(trained, documents, parts))
            torch.nn.utils.clip_grad_norm_(trained.parameters(), CLIP)
            optimizer.step()
        print(f"documents, {name}: experts are {margin:.1e} apart")
        save(trained, folder / name)


# Names of the sites of attention's dropout, by layer.
DROPPED = {
    "gpt2": "transformer.h.{}.attn.attn_dropout",
    "llama": "model.layers.{}.self_attn.attention_dropout",
    "bert_mlm": "bert.encoder.layer.{}.attention.self.dropout",
}


def site_hash(name):
    number = 2166136261
    for byte in name.encode():
        number = (number ^ byte) * 16777619 % 2**32
    return number


def philox(counter, key):
    """Philox-4x32-10 of a counter of four arrays of words."""
    counter = [numpy.asarray(word, numpy.uint64) for word in counter]
    key, low, shift = list(key), numpy.uint64(2**32 - 1), numpy.uint64(32)
    for _ in range(10):
        first, second = numpy.uint64(0xD2511F53) * counter[0], numpy.uint64(0xCD9E8D57) * counter[2]
        counter = [(second >> shift) ^ counter[1] ^ numpy.uint64(key[0]), second & low,
                   (first >> shift) ^ counter[3] ^ numpy.uint64(key[1]), first & low]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def attention_mask(name, weights):
    """What dropout multiplies weights [sequences, heads, length, length] by."""
    sequences, heads, length, _ = weights.shape
    sequence, head, query, key = numpy.ogrid[:sequences, :heads, :length, :length]
    token, head, key = numpy.broadcast_arrays(sequence * length + query, head, key)
    words = numpy.stack(philox([token, head << 20 | key // 8, 0 * token, 0 * token + site_hash(name)],
                               (0, 0)))
    word = numpy.take_along_axis(words, (key % 8 // 2)[None], 0)[0].astype(numpy.int64)
    kept = (word >> (key % 2 * 16) & 0xFFFF) >= round(DROPOUT * 65536)
    return torch.from_numpy(kept / (1 - DROPOUT))


def write_dropped(name, model, tokens, targets):
    """The gradients of a model whose transformers computes attention's weights one layer after the
    other, and gives them, and no others of that many dimensions, to dropout."""
    calls, plain = [], torch.nn.functional.dropout

    def dropout(x, *_, **__):
        if x.dim() < 4:
            return x
        calls.append(x)
        return x * attention_mask(DROPPED[name].format(len(calls) - 1), x)

    model.zero_grad()
    torch.nn.functional.dropout = dropout
    try:
        loss = loss_of(model, tokens, targets)[1]
    finally:
        torch.nn.functional.dropout = plain
    assert len(calls) == model.config.num_hidden_layers
    loss.backward()
    save(of_gradients(model), FOLDER / name / "dropped")
    (FOLDER / name / "dropped" / "loss.json").write_text(json.dumps({"loss": loss.item()}) + "\n")


def main():
    names = sys.argv[1:] or [*FAMILIES, "chats"]
    if "gpt2" in names:
        torch.manual_seed(2)
        write_imported()
    for name in names:
        if name == "chats":
            write_chats()
            continue
        write_family(name)


if __name__ == "__main__":
    main()
