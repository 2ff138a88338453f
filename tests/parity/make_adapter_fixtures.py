#!/usr/bin/env python3
"""Writes testdata/<family>/<case>: adapters of Hugging Face's peft library on the models that
make_fixtures.py wrote, trained in float64 on their batches.

  start/              an adapter that changes its network
  trained/            the same after 20 steps of AdamW
  merged.safetensors  what the trained adapter has made of the weights and biases that it changes;
                      not of virtual tokens, which change none, and not of an adapter of an
                      embedding whose classifier has the same weight
  {start,trained}/encoder.safetensors  of virtual tokens that a network makes: that network, of which
                      the adapter has the results alone

Needs torch, transformers, peft and safetensors; run it by hand when the fixtures are to change, with
the cases to write as arguments (gpt2/lora), or none for all.
"""

import json
import sys

import torch
from peft import (
    AdaLoraConfig, IA3Config, LoHaConfig, LoKrConfig, LoraConfig, MissConfig, OFTConfig, PrefixTuningConfig,
    PromptEncoderConfig, PromptTuningConfig, TrainableTokensConfig, VeraConfig, get_peft_model,
)
from safetensors.torch import load_file, save_file

from make_fixtures import BETAS, CLIP, DECAY, EPSILON, FAMILIES, FOLDER, LEARNING_RATE, STEPS
from make_fixtures import objective_of

VIRTUAL = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 4}

# Some in a row and some not, most of them in the batches.
TOKENS = [40, 3, 4, 5, 66, 12]

CASES = {
    "gpt2/lora": LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"],
                            fan_in_fan_out=True),
    "gpt2/dora": LoraConfig(r=3, lora_alpha=6, target_modules=["c_attn", "c_fc"], use_dora=True,
                            modules_to_save=["ln_f"], fan_in_fan_out=True),
    "gpt2/ia3": IA3Config(target_modules=["c_attn", "mlp.c_proj"],
                          feedforward_modules=["mlp.c_proj"], fan_in_fan_out=True),
    "gpt2/vera": VeraConfig(r=4, target_modules=["c_attn", "mlp.c_proj"], fan_in_fan_out=True,
                            bias="all"),
    "gpt2/bias": LoraConfig(r=2, lora_alpha=2, target_modules=["c_attn"], bias="all",
                            fan_in_fan_out=True),
    "llama/lora": LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"],
                             use_rslora=True),
    "llama/patterns": LoraConfig(r=2, lora_alpha=4, target_modules=r".*\.(q|v|up)_proj",
                                 rank_pattern={"up_proj": 3, r"layers\.1\.self_attn\.q_proj": 4},
                                 alpha_pattern={"v_proj": 8}, modules_to_save=["lm_head"]),
    "llama/dora": LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "o_proj"], use_dora=True),
    "llama/pissa": LoraConfig(r=3, lora_alpha=6, target_modules=["v_proj", "gate_proj"],
                              init_lora_weights="pissa"),
    "llama/olora": LoraConfig(r=3, lora_alpha=3, target_modules=["k_proj", "down_proj"],
                              init_lora_weights="olora"),
    "llama/ia3": IA3Config(target_modules=["k_proj", "v_proj", "down_proj"],
                           feedforward_modules=["down_proj"]),
    "gpt2/adalora": AdaLoraConfig(init_r=4, target_r=2, lora_alpha=8, tinit=3, tfinal=5, deltaT=2,
                                  total_step=STEPS, target_modules=["c_attn", "mlp.c_proj"],
                                  fan_in_fan_out=True),
    "llama/adalora": AdaLoraConfig(init_r=6, target_r=3, tinit=2, tfinal=4, beta1=0.7, beta2=0.8,
                                   orth_reg_weight=0.1, total_step=STEPS,
                                   target_modules=["q_proj", "v_proj", "down_proj"]),
    "llama/miss": MissConfig(r=4, target_modules=["q_proj", "up_proj"]),
    "llama/loha": LoHaConfig(r=3, alpha=6, target_modules=["q_proj", "v_proj", "down_proj"],
                             rank_pattern={"down_proj": 2}, alpha_pattern={"v_proj": 3}),
    "llama/lokr": LoKrConfig(r=1, alpha=2, target_modules=["q_proj", "k_proj", "up_proj"],
                             decompose_both=True),
    "llama/oft": OFTConfig(oft_block_size=8, target_modules=["q_proj", "o_proj", "up_proj"]),
    "llama/vera": VeraConfig(r=5, target_modules=["q_proj", "v_proj", "down_proj"], d_initial=0.2),
    "bert_mlm/lora": LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"],
                                layers_to_transform=[1]),
    "bert_mlm/ia3": IA3Config(target_modules=["key", "value", "output.dense"],
                              feedforward_modules=["output.dense"]),
    "bert_mlm/lokr": LoKrConfig(r=8, alpha=4, target_modules=["query", "output.dense"],
                                decompose_factor=4),
    "bert_mlm/oft": OFTConfig(oft_block_size=4, target_modules=["query", "intermediate.dense"]),
    "bert_mlm/loha": LoHaConfig(r=2, alpha=2, target_modules=["key", "intermediate.dense"],
                                layers_to_transform=[0]),
    "vit/lora": LoraConfig(r=4, lora_alpha=4,
                           target_modules=r".*\.layer\.\d+\.(intermediate|output)\.dense"),
    "vit/miss": MissConfig(r=5, target_modules=["query", "output.dense"]),
    "gpt2/embedding": LoraConfig(r=3, lora_alpha=6, target_modules=["wte", "c_attn"],
                                 fan_in_fan_out=True),
    "llama/embedding": LoraConfig(r=3, lora_alpha=6, target_modules=["embed_tokens", "v_proj"],
                                  rank_pattern={"embed_tokens": 2}),
    "bert_mlm/embedding": LoraConfig(r=2, lora_alpha=4, target_modules=["word_embeddings", "query"]),
    "mistral/lora": LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "o_proj", "up_proj"]),
    "qwen2/lora": LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj"],
                             bias="all"),
    "qwen2/dora": LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], use_dora=True),
    "mixtral/lora": LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj", "o_proj"]),
    "gpt2/tokens": LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn"],
                              trainable_token_indices=TOKENS, fan_in_fan_out=True),
    "llama/tokens": LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"],
                               trainable_token_indices=TOKENS),
    "gpt2/tokens_alone": TrainableTokensConfig(token_indices=TOKENS),
    "llama/tokens_alone": TrainableTokensConfig(token_indices=TOKENS),
    "gpt2/prompt": PromptTuningConfig(**VIRTUAL),
    "llama/prompt": PromptTuningConfig(**VIRTUAL),
    "gpt2/p_tuning": PromptEncoderConfig(encoder_hidden_size=24, **VIRTUAL),
    "llama/p_tuning": PromptEncoderConfig(encoder_hidden_size=24, **VIRTUAL),
    "gpt2/prefix": PrefixTuningConfig(**VIRTUAL),
    "llama/prefix": PrefixTuningConfig(**VIRTUAL),
    "gpt2/projected_prefix": PrefixTuningConfig(prefix_projection=True, encoder_hidden_size=24,
                                                **VIRTUAL),
    "llama/projected_prefix": PrefixTuningConfig(prefix_projection=True, encoder_hidden_size=24,
                                                 **VIRTUAL),
}


def read_batch(folder):
    """The inputs and targets that make_fixtures.py recorded."""
    batch = load_file(folder / "batch.safetensors")
    targets = batch["targets"].long()
    if "pixels" in batch:
        return {"pixel_values": batch["pixels"].double()}, targets
    tokens = batch["tokens"].long()
    if "lengths" not in batch:
        return tokens, targets
    places = torch.arange(tokens.shape[1])[None]
    return {"input_ids": tokens, "token_type_ids": batch["token_types"].long(),
            "attention_mask": (places < batch["lengths"][:, None]).long()}, targets


def objective_of_tokens(model, tokens, targets):
    """The loss where some of the logits are those of virtual tokens."""
    if not model.active_peft_config.is_prompt_learning:
        return objective_of(model.get_base_model(), tokens, targets)
    logits = model(input_ids=tokens).logits[:, -tokens.shape[1]:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(),
                                             ignore_index=-1)


def regularization(model, tokens):
    """What peft adds to the loss of an AdaLoRA, which it knows of a loss that the model computes."""
    if model.active_peft_config.peft_type != "ADALORA":
        return 0
    return (model.base_model(input_ids=tokens, labels=tokens).loss
            - model.base_model.model(input_ids=tokens, labels=tokens).loss)


def train(model, tokens, targets):
    """As make_fixtures.py trains; the vectors of IA3 and AdaLoRA, which are matrices there, do not
    decay."""
    vector = ("ia3_l", "lora_E")
    named = [(key, p) for key, p in model.named_parameters() if p.requires_grad]
    trained = [p for _, p in named]
    matrices = [p for key, p in named if p.dim() >= 2 and not any(v in key for v in vector)]
    vectors = [p for key, p in named if p.dim() < 2 or any(v in key for v in vector)]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    for step in range(STEPS):
        optimizer.zero_grad()
        (objective_of_tokens(model, tokens, targets) + regularization(model, tokens)).backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        if model.active_peft_config.peft_type == "ADALORA":
            model.base_model.update_and_allocate(step)


def save_adapter(model, folder):
    model.float().save_pretrained(folder, save_embedding_layers=False)
    model.double()
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = None
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if not model.active_peft_config.is_prompt_learning:
        return
    encoder = model.prompt_encoder[model.active_adapter].state_dict()
    if len(encoder) > 1:
        save_file({key: value.float().contiguous() for key, value in encoder.items()},
                  folder / "encoder.safetensors")


def write_case(case):
    family, name = case.split("/")
    folder = FOLDER / family
    torch.manual_seed(2)
    # Other products of experts take no float64.
    eager = {"experts_implementation": "eager"} if family == "mixtral" else {}
    base = type(FAMILIES[family]()).from_pretrained(folder / "start", attn_implementation="eager",
                                                    **eager)
    before = {key: value.clone() for key, value in base.state_dict().items()}
    config = CASES[case]
    model = get_peft_model(base, config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Those that start without effect.
            if any(part in key for part in ("lora_B", "ia3_l", "miss_block", "hada_w2_b", "lokr_w1",
                                            "oft_R", "vera_lambda_b", "lora_E", "lora_embedding_A")):
                if getattr(config, "init_lora_weights", True) is True:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    save_adapter(model, folder / name / "start")
    train(model, *read_batch(folder))
    save_adapter(model, folder / name / "trained")
    if config.is_prompt_learning or name == "embedding" and base.config.tie_word_embeddings:
        return
    merged = model.double().merge_and_unload().float().state_dict()
    tied = "lm_head.weight" if base.config.tie_word_embeddings else None
    changed = {key: value.contiguous() for key, value in merged.items()
               if key != tied and not torch.equal(value, before[key])}
    save_file(changed, folder / name / "merged.safetensors")


def main():
    for case in sys.argv[1:] or CASES:
        write_case(case)


if __name__ == "__main__":
    main()
