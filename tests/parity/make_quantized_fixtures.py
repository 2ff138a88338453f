"""Writes testdata/quantized: QLoRA with transformers, peft and bitsandbytes. The linear layers of the blocks are
bitsandbytes' Linear4bit, in blocks of 64, which compute in float32; LoRA is on them.

  {llama,gpt2}/start/  the networks, in bf16
  <network>_<format>/{start,trained}/  the adapter before and after 20 steps of AdamW
  <network>_<format>/record.safetensors  "losses" before each step, and weights of some layers, dequantised, [out, in]

The format is nf4 or fp4, with _double if scales are quantised, too. The MLPs of the llama have 320 blocks: more
than the 256 whose scales share a scale. Transformers replaces the Conv1D of gpt2 by Linear4bit with the weight
transposed. Rows of weights are whole blocks: on CPUs bitsandbytes takes wrong scales where they are not. The
batches are those of llama and gpt2 that make_fixtures.py wrote.

make_adapter_fixtures.py runs it.
"""

import torch
from bitsandbytes.functional import dequantize_4bit
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from make_adapter_fixtures import optimize, read_batch, save_folder
from make_fixtures import FOLDER, LLAMA, objective_of

NETWORKS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**{**LLAMA, "hidden_size": 64, "intermediate_size": 320})),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(
        vocab_size=67, n_positions=24, n_embd=64, n_layer=2, n_head=2, n_inner=128, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, attn_implementation="eager", bos_token_id=None, eos_token_id=None)),
}
# With which no scale is next to a border: there bitsandbytes' search on CPUs may miss the nearest value.
SEEDS = {"llama": 14, "gpt2": 2}
ADAPTED = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
}
# Layers whose dequantised weights are recorded, and more of them where scales are quantised.
RECORDED = {
    "llama": (["model.layers.1.self_attn.q_proj"], ["model.layers.1.mlp.down_proj"]),
    "gpt2": (["transformer.h.1.mlp.c_fc"], []),
}
CASES = [f"{network}_{kind}" for network in NETWORKS for kind in ("nf4", "nf4_double", "fp4", "fp4_double")]


def start_of(network):
    """The folder of a network, which is written, and its class."""
    folder = FOLDER / "quantized" / network / "start"
    torch.manual_seed(SEEDS[network])
    model = NETWORKS[network]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder, type(model)


def load_quantized(network, kind):
    folder, model = start_of(network)
    return model.from_pretrained(
        folder, dtype=torch.float32, device_map="cpu", attn_implementation="eager",
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type=kind.removesuffix("_double"),
            bnb_4bit_use_double_quant=kind.endswith("_double"), bnb_4bit_compute_dtype=torch.float32))


def dequantized(base, name):
    weight = base.get_submodule(name).weight
    return dequantize_4bit(weight.data, weight.quant_state).float().contiguous()


def write_case(case):
    network, kind = case.split("_", 1)
    folder = FOLDER / "quantized" / case
    base = load_quantized(network, kind)
    always, of_double = RECORDED[network]
    layers = always + (of_double if kind.endswith("_double") else [])
    record = {f"{name}.weight": dequantized(base, name) for name in layers}
    torch.manual_seed(2)
    # In evaluation Linear4bit may compute in bf16; the networks have no dropout.
    model = get_peft_model(base, LoraConfig(r=3, lora_alpha=6, target_modules=ADAPTED[network])).train()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:  # which starts at zero
                parameter.add_(torch.randn_like(parameter) * 0.1)
    save_folder(model, folder / "start")
    tokens, targets = read_batch(FOLDER / network)
    named = [(key, parameter) for key, parameter in model.named_parameters() if parameter.requires_grad]
    losses = optimize(named, lambda: objective_of(model.get_base_model(), tokens, targets))
    save_folder(model, folder / "trained")
    save_file({"losses": torch.tensor(losses, dtype=torch.float64), **record}, folder / "record.safetensors")
