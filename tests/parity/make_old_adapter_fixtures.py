#!/usr/bin/env python3
"""Writes testdata/<version>/<family>_<method>: adapters as peft 0.8.2, of February 2024 (peft_0_8), and
0.13.2, of October 2024 (peft_0_13), saved them, on the models that make_fixtures.py wrote, and
logits.safetensors: those of the last token of the first recorded sequence, computed in float64.

Needs one of these versions of peft, torch, transformers 4 and safetensors; run it by hand.
"""

import json
import pathlib

import peft
import torch
from peft import (
    AdaLoraConfig, IA3Config, LoHaConfig, LoKrConfig, LoraConfig, PrefixTuningConfig, PromptEncoderConfig,
    PromptTuningConfig, get_peft_model,
)
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache

FOLDER = pathlib.Path(__file__).parent / "testdata"
VIRTUAL = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
STEPS = 6

CASES_OF_0_8 = {
    "gpt2_lora": LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, lora_dropout=0.05, bias="all",
                            target_modules=["c_attn"], fan_in_fan_out=True),
    "gpt2_ia3": IA3Config(task_type="CAUSAL_LM", target_modules=["c_attn", "mlp.c_proj"],
                          feedforward_modules=["mlp.c_proj"], fan_in_fan_out=True),
    "gpt2_prompt": PromptTuningConfig(**VIRTUAL),
    "gpt2_p_tuning": PromptEncoderConfig(encoder_hidden_size=8, **VIRTUAL),
    "gpt2_prefix": PrefixTuningConfig(**VIRTUAL),
    "llama_lora": LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, use_rslora=True,
                             target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": 3},
                             modules_to_save=["norm"]),
    "llama_adalora": AdaLoraConfig(task_type="CAUSAL_LM", init_r=4, target_r=2, lora_alpha=8, tinit=1,
                                   tfinal=1, total_step=STEPS, target_modules=["q_proj", "v_proj"]),
    "llama_loha": LoHaConfig(task_type="CAUSAL_LM", r=2, alpha=4, target_modules=["v_proj"]),
    "llama_lokr": LoKrConfig(task_type="CAUSAL_LM", r=1, alpha=2, target_modules=["k_proj"]),
}


def cases_of_0_13():
    """Of methods that 0.8.2 lacks. After 400 steps pissa has
    the singular values."""
    from peft import LNTuningConfig, VeraConfig

    return {
        "gpt2_dora": LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, use_dora=True,
                                target_modules=["c_attn"], fan_in_fan_out=True),
        "gpt2_vera": VeraConfig(task_type="CAUSAL_LM", r=3, target_modules=["c_attn"], fan_in_fan_out=True),
        "gpt2_ln": LNTuningConfig(task_type="CAUSAL_LM", target_modules=["ln_1", "ln_f"]),
        "llama_dora": LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, use_dora=True,
                                 target_modules=["q_proj", "down_proj"]),
        "llama_pissa": LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4,
                                  init_lora_weights="pissa_niter_400", target_modules=["v_proj"]),
    }


def choose_ranks(model, tokens):
    """A few steps of an AdaLoRA, after which some ranks are left out of its file."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        model.base_model.update_and_allocate(step)


def write_case(version, name, config):
    torch.manual_seed(3)
    family, folder = FOLDER / name.split("_")[0], FOLDER / version / name
    base = AutoModelForCausalLM.from_pretrained(family / "start", attn_implementation="eager")
    model = get_peft_model(base, config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    tokens = load_file(family / "batch.safetensors")["tokens"].long()
    if config.peft_type == "ADALORA":
        choose_ranks(model, tokens)
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()
    path = folder / "adapter_config.json"
    saved = json.loads(path.read_text())
    saved["base_model_name_or_path"] = None
    if saved.get("target_modules"):
        saved["target_modules"].sort()  # a set there, in another order each time
    path.write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")
    if config.peft_type == "PREFIX_TUNING":  # a tuple then, which later versions of transformers refuse
        prompt_of = model.get_prompt
        model.get_prompt = lambda batch_size: DynamicCache.from_legacy_cache(prompt_of(batch_size))
    with torch.no_grad():
        logits = model.double()(input_ids=tokens[:1], use_cache=False).logits[0, -1:]
    save_file({"logits": logits.float().contiguous()}, folder / "logits.safetensors")


def main():
    versions = {"0.8.2": ("peft_0_8", lambda: CASES_OF_0_8), "0.13.2": ("peft_0_13", cases_of_0_13)}
    version, cases = versions[peft.__version__]
    for name, config in cases().items():
        write_case(version, name, config)


if __name__ == "__main__":
    main()
