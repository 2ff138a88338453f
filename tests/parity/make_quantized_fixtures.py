"""Writes testdata/quantized/<family>_<format>: QLoRA with transformers, peft and bitsandbytes. The linear layers
of the blocks are bitsandbytes' Linear4bit, in blocks of 64, which compute in float32; LoRA is on them.

  start/, trained/  the adapter before and after 20 steps of AdamW
  record.safetensors  "losses" before each step, and weights of some layers, dequantised, [out, in]

The format is nf4 or fp4, with _double if scales are quantised, too. The families are llama and gpt2, which
make_fixtures.py wrote (transformers replaces the Conv1D of gpt2 by Linear4bit with the weight transposed), and
wide, a llama whose MLP has matrices of 272 blocks: more than the 256 whose scales share a scale. Its folder,
quantized/wide, has weights in bf16; it is written with its adapters. All train on the batches of llama and gpt2.

make_adapter_fixtures.py runs it.
"""

import torch
from bitsandbytes.functional import dequantize_4bit
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from make_adapter_fixtures import optimize, read_batch, save_folder
from make_fixtures import FAMILIES, FOLDER, LLAMA, objective_of

# What is adapted, and the layers whose dequantised weights are recorded.
LAYERS = {
    "llama": (["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
              ["model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"]),
    "gpt2": (["c_attn", "c_proj", "c_fc"], ["transformer.h.1.attn.c_attn", "transformer.h.1.mlp.c_proj"]),
    "wide": (["q_proj", "v_proj", "down_proj"], ["model.layers.0.mlp.down_proj"]),
}
CASES = [f"{family}_{kind}" for family, kinds in {
    "llama": ("nf4", "nf4_double", "fp4", "fp4_double"),
    "gpt2": ("nf4", "nf4_double", "fp4", "fp4_double"),
    "wide": ("nf4_double",),
}.items() for kind in kinds]


def base_of(family):
    """The folder of a network, and its class."""
    if family != "wide":
        return FOLDER / family / "start", type(FAMILIES[family]())
    folder = FOLDER / "quantized" / "wide" / "start"
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(
        **{**LLAMA, "hidden_size": 64, "intermediate_size": 272, "num_hidden_layers": 1}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.bfloat16().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    return folder, LlamaForCausalLM


def load_quantized(family, kind):
    folder, network = base_of(family)
    return network.from_pretrained(
        folder, dtype=torch.float32, device_map="cpu", attn_implementation="eager",
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type=kind.removesuffix("_double"),
            bnb_4bit_use_double_quant=kind.endswith("_double"), bnb_4bit_compute_dtype=torch.float32))


def dequantized(base, name):
    weight = base.get_submodule(name).weight
    return dequantize_4bit(weight.data, weight.quant_state).float().contiguous()


def write_case(case):
    family, kind = case.split("_", 1)
    folder = FOLDER / "quantized" / case
    base = load_quantized(family, kind)
    record = {f"{name}.weight": dequantized(base, name) for name in LAYERS[family][1]}
    torch.manual_seed(2)
    # In evaluation Linear4bit may compute in bf16; the networks have no dropout.
    model = get_peft_model(base, LoraConfig(r=3, lora_alpha=6, target_modules=LAYERS[family][0])).train()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:  # which starts at zero
                parameter.add_(torch.randn_like(parameter) * 0.1)
    save_folder(model, folder / "start")
    tokens, targets = read_batch(FOLDER / ("llama" if family == "wide" else family))
    named = [(key, parameter) for key, parameter in model.named_parameters() if parameter.requires_grad]
    losses = optimize(named, lambda: objective_of(model.get_base_model(), tokens, targets))
    save_folder(model, folder / "trained")
    save_file({"losses": torch.tensor(losses, dtype=torch.float64), **record}, folder / "record.safetensors")
