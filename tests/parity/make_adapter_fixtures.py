#!/usr/bin/env python3
"""Writes testdata/<family>/<case>: adapters of Hugging Face's peft library on the models that
make_fixtures.py wrote, trained in float64 on their batches.

  start/              an adapter that changes its network
  trained/            the same after 20 steps of AdamW
  merged.safetensors  what the trained adapter has made of the weights and biases that it changes;
                      not of virtual tokens, which change none, and not of an adapter of an
                      embedding whose classifier has the same weight
  {start,trained}/encoder.safetensors  of virtual tokens that a network makes: that network; the
                      adapter has its results alone

Of what peft lacks, written in PyTorch from its papers: bottleneck adapters (houlsby, pfeiffer,
parallel), in the engine's own folders; and bitfit, which has merged.safetensors alone.

testdata/quantized has adapters of quantised networks, which make_quantized_fixtures.py writes.

Of each family there is each method that peft has for it and that the engine trains, except:
  - loha, lokr, oft, miss and the start olora of gpt2: peft has none for its layers (Conv1D),
  - trained tokens of bert have a start alone: peft leaves out the bias of a classifier that has the
    same table,
  - virtual tokens of a vit, whose images are no tokens. Prefixes of bert_mlm: its network takes no keys
    and values,
  - of mixtral other methods of weights than lora are of its attention alone.

Needs torch, transformers, peft, bitsandbytes, accelerate and safetensors; run it by hand when the fixtures are to
change, with the cases to write as arguments (gpt2/lora, quantized/llama_nf4), or none for all that the version of transformers has: 5 those of
a vit that end with _5, whose modules have other names there, and 4.57 the others of a vit. 4.57 also writes those of
experts, which are one tensor in 5, and 5 all others. Another processor gives other last bits.
"""

import json
import sys

import torch
import transformers
from peft import (
    AdaLoraConfig, IA3Config, LNTuningConfig, LoHaConfig, LoKrConfig, LoraConfig, MissConfig, OFTConfig,
    PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, TrainableTokensConfig, VeraConfig,
    get_peft_model,
)
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file

from make_fixtures import BETAS, CLIP, DECAY, EPSILON, FAMILIES, FOLDER, LEARNING_RATE, STEPS
from make_fixtures import objective_of, with_balance

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
    "gpt2/lora_only": LoraConfig(r=2, lora_alpha=2, target_modules=["mlp.c_proj"], bias="lora_only",
                                 fan_in_fan_out=True),
    "llama/lora": LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"],
                             use_rslora=True),
    "llama/loraplus": LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "up_proj"]),
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
    # By the names of transformers 5.
    "vit/lora_5": LoraConfig(r=4, lora_alpha=4, target_modules=r".*\.layers\.\d+\.mlp\.fc[12]",
                             rank_pattern={"fc1": 2}, alpha_pattern={r"layers\.1\.mlp\.fc2": 8}),
    "vit/dora_5": LoraConfig(r=2, lora_alpha=4, target_modules=["o_proj"], use_dora=True,
                             layers_to_transform=[1], bias="lora_only",
                             modules_to_save=["classifier", "layers.0.mlp.fc2"]),
    "vit/head_5": LoraConfig(r=3, lora_alpha=6, target_modules=["projection", "classifier", "q_proj"]),
    "vit/adalora_5": AdaLoraConfig(init_r=4, target_r=2, lora_alpha=8, tinit=2, tfinal=5,
                                   total_step=STEPS, target_modules=["k_proj", "mlp.fc2"]),
    "vit/ia3_5": IA3Config(target_modules=["k_proj", "v_proj", "mlp.fc2"],
                           feedforward_modules=["mlp.fc2"]),
    "vit/vera_5": VeraConfig(r=4, target_modules=["q_proj", "v_proj"], d_initial=0.2),
    "vit/ln_tuning_5": LNTuningConfig(target_modules=["layernorm_before", "layernorm"]),
    # Layers outside the blocks.
    "llama/head": LoraConfig(r=3, lora_alpha=6, target_modules=["lm_head", "q_proj"],
                             rank_pattern={"lm_head": 2}),
    "llama/head_pissa": LoraConfig(r=3, lora_alpha=6, target_modules=["lm_head"],
                                   init_lora_weights="pissa"),
    "llama/head_dora": LoraConfig(r=2, lora_alpha=4, target_modules=["lm_head", "v_proj"], use_dora=True),
    "bert_mlm/head": LoraConfig(r=2, lora_alpha=4, target_modules=["dense"]),
    "bert_classes/head": LoraConfig(r=2, lora_alpha=4, target_modules=["pooler.dense", "classifier"],
                                    use_rslora=True),
    "bert_classes/head_dora": LoraConfig(r=2, lora_alpha=4, target_modules=["classifier"], use_dora=True),
    "vit/head": LoraConfig(r=3, lora_alpha=6, target_modules=["projection", "classifier", "query"]),
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
    "mixtral/experts": LoraConfig(r=2, lora_alpha=4, target_modules=["w1", "w2", "w3"]),
    "mixtral/experts_and_attention": LoraConfig(
        r=2, lora_alpha=4, target_modules=["k_proj", "w1", "w2"], rank_pattern={"w2": 3},
        use_rslora=True),
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
    # A document a row, with padding behind it.
    "gpt2/padded_prompt": PromptTuningConfig(**VIRTUAL),
    "llama/padded_prompt": PromptTuningConfig(**VIRTUAL),
    "gpt2/padded_prefix": PrefixTuningConfig(**VIRTUAL),
    "llama/padded_prefix": PrefixTuningConfig(**VIRTUAL),
}
# Of the documents of these.
PADDED_LENGTHS = [20, 13, 6]


# Of LoRA+: the learning rate of B over that of A, which configurations do not have.
LORAPLUS_LR_RATIO = 4

# Adapters that are read and written again, and not trained.
STARTS_ALONE = ("bert_mlm/tokens", "bert_mlm/tokens_alone")


def cases_of(query, key, value, up, down, norms, tokens=True, experts=False):
    """Small adapters of every method for a family, by the names of its layers. Those of a mixture
    are of its attention."""
    cases = {
        "rslora": LoraConfig(r=2, lora_alpha=4, target_modules=[key, value], use_rslora=True),
        "dora": LoraConfig(r=2, lora_alpha=4, target_modules=[key], use_dora=True),
        "pissa": LoraConfig(r=2, lora_alpha=4, target_modules=[value], init_lora_weights="pissa"),
        "olora": LoraConfig(r=2, lora_alpha=2, target_modules=[key], init_lora_weights="olora"),
    }
    if tokens:
        cases["tokens"] = LoraConfig(r=2, lora_alpha=4, target_modules=[value],
                                     trainable_token_indices=TOKENS)
        cases["tokens_alone"] = TrainableTokensConfig(token_indices=TOKENS)
    feedforward = [] if experts else [down]
    return cases | {
        "adalora": AdaLoraConfig(init_r=4, target_r=2, lora_alpha=8, tinit=2, tfinal=5,
                                 total_step=STEPS, target_modules=[key, value]),
        "ia3": IA3Config(target_modules=[key, value, *feedforward], feedforward_modules=feedforward),
        "loha": LoHaConfig(r=2, alpha=4, target_modules=[value]),
        "lokr": LoKrConfig(r=1, alpha=2, target_modules=[key, query if experts else up],
                           decompose_factor=4),
        "oft": OFTConfig(oft_block_size=4, target_modules=[value]),
        "vera": VeraConfig(r=4, target_modules=[query, value], d_initial=0.2),
        "miss": MissConfig(r=3, target_modules=[key]),
        "ln_tuning": LNTuningConfig(target_modules=norms),
    }


def add_families():
    """To CASES what it does not have of them yet."""
    bert = ("query", "key", "value", "intermediate.dense")
    llama = ("q_proj", "k_proj", "v_proj", "up_proj", "down_proj")
    llama_norms = ["input_layernorm", "post_attention_layernorm", "norm"]
    families = {
        # "output.dense" is that of attention, too.
        "bert_mlm": cases_of(*bert, "layer.0.output.dense", ["LayerNorm"]),
        "vit": cases_of(*bert, "layer.0.output.dense",
                        ["layernorm_before", "layernorm_after", "layernorm"], tokens=False),
        "llama": {"ln_tuning": LNTuningConfig(target_modules=llama_norms)},
        "mistral": cases_of(*llama, llama_norms),
        "qwen2": cases_of(*llama, ["post_attention_layernorm"]),
        "mixtral": cases_of(*llama, llama_norms, experts=True),
        "gpt2": {
            "rslora": LoraConfig(r=4, lora_alpha=4, target_modules=["attn.c_proj"], use_rslora=True,
                                 fan_in_fan_out=True),
            "pissa": LoraConfig(r=3, lora_alpha=6, target_modules=["attn.c_proj"],
                                init_lora_weights="pissa", fan_in_fan_out=True),
            "ln_tuning": LNTuningConfig(target_modules=["ln_1", "ln_2", "ln_f"]),
        },
        # Whose classifier peft trains whole of its own accord.
        "bert_classes": {"lora": LoraConfig(r=2, lora_alpha=4, target_modules=["key"],
                                            task_type="SEQ_CLS")},
    }
    # peft has no task of masked language models.
    for family, task in (("bert_classes", "SEQ_CLS"), ("bert_mlm", "TOKEN_CLS")):
        virtual = {"task_type": task, "num_virtual_tokens": 4}
        families[family] |= {
            "prompt": PromptTuningConfig(**virtual),
            "p_tuning": PromptEncoderConfig(encoder_hidden_size=24, **virtual),
        }
        if task == "SEQ_CLS":
            families[family] |= {
                "prefix": PrefixTuningConfig(**virtual),
                "projected_prefix": PrefixTuningConfig(prefix_projection=True,
                                                       encoder_hidden_size=24, **virtual),
            }
    for family in ("mistral", "qwen2", "mixtral"):
        families[family]["embedding"] = LoraConfig(r=2, lora_alpha=4,
                                                   target_modules=["embed_tokens", "v_proj"])
    for family in ("mistral", "qwen2", "mixtral"):
        families[family] |= {
            "prompt": PromptTuningConfig(**VIRTUAL),
            "p_tuning": PromptEncoderConfig(encoder_hidden_size=24, **VIRTUAL),
            "prefix": PrefixTuningConfig(**VIRTUAL),
            "projected_prefix": PrefixTuningConfig(prefix_projection=True, encoder_hidden_size=24,
                                                   **VIRTUAL),
        }
    for family, cases in families.items():
        for name, config in cases.items():
            CASES.setdefault(f"{family}/{name}", config)


add_families()

# What ends the attention and the MLP of a block, and what the MLP begins with.
SUB_LAYERS = {
    "gpt2": ("attn.c_proj", "mlp.c_proj", "mlp.c_fc"),
    "llama": ("self_attn.o_proj", "mlp.down_proj", "mlp.gate_proj"),
    "mixtral": ("self_attn.o_proj", "block_sparse_moe", "block_sparse_moe"),
    "bert_mlm": ("attention.output.dense", "output.dense", "intermediate.dense"),
    "vit": ("attention.output.dense", "output.dense", "intermediate.dense"),
}
BOTTLENECKS = {
    "houlsby": {"reduction_factor": 8, "non_linearity": "relu"},
    "pfeiffer": {"reduction_factor": 4, "non_linearity": "gelu"},
    "parallel": {"reduction_factor": 8, "non_linearity": "swish", "scaling": 4},
}
# Folders of pfeiffer have another version: those of version 1 read the MLP's result alone.
VERSIONS = {"pfeiffer": 2}
# In a block, a layer and which of its inputs is the residual stream that the MLP's result is added to, and
# the norm of that sum, where it comes after it.
STREAMS = {
    "gpt2": ("ln_2", 0, None),
    "llama": ("post_attention_layernorm", 0, None),
    "mixtral": ("post_attention_layernorm", 0, None),
    "bert_mlm": ("output", 1, "output.LayerNorm"),
    "vit": ("layernorm_after", 0, None),
}
ACTIVATIONS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "swish": torch.nn.functional.silu}


def padded(tokens, targets):
    """The same rows with as many tokens as PADDED_LENGTHS says: nothing is to be predicted behind the last."""
    places = torch.arange(tokens.shape[1])[None]
    lengths = torch.tensor(PADDED_LENGTHS)[:, None]
    inputs = {"input_ids": tokens, "attention_mask": (places < lengths).long()}
    return inputs, torch.where(places + 1 < lengths, targets, -1)


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
    inputs = tokens if isinstance(tokens, dict) else {"input_ids": tokens}

    def loss():
        logits = model(**inputs).logits
        if logits.dim() == 3:
            logits = logits[:, -inputs["input_ids"].shape[1]:]
        return torch.nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten(),
                                                 ignore_index=-1)

    return with_balance(model.get_base_model(), loss)


def regularization(model, tokens, targets):
    """What peft adds to the loss of an AdaLoRA, which it knows of a loss that the model computes."""
    if model.active_peft_config.peft_type != "ADALORA":
        return 0
    inputs = dict(tokens) if isinstance(tokens, dict) else {"input_ids": tokens}
    inputs["labels"] = inputs.get("input_ids", targets)
    return model.base_model(**inputs).loss - model.base_model.model(**inputs).loss


def optimizer_of(named):
    """As make_fixtures.py trains; the vectors of IA3 and AdaLoRA, which are matrices there, do not
    decay."""
    vector = ("ia3_l", "lora_E")
    matrices = [p for key, p in named if p.dim() >= 2 and not any(v in key for v in vector)]
    vectors = [p for key, p in named if p.dim() < 2 or any(v in key for v in vector)]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)


def loraplus_optimizer_of(model):
    return create_loraplus_optimizer(model, torch.optim.AdamW, lr=LEARNING_RATE,
                                     loraplus_lr_ratio=LORAPLUS_LR_RATIO,
                                     loraplus_weight_decay=DECAY, betas=BETAS, eps=EPSILON)


def optimize(named, objective, after_step=lambda step: None, optimizer=None):
    """Returns the losses before each step."""
    trained, losses = [p for _, p in named], []
    optimizer = optimizer or optimizer_of(named)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = objective()
        loss.backward()
        losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        after_step(step)
    return losses


def train(model, tokens, targets, optimizer=None):
    named = [(key, p) for key, p in model.named_parameters() if p.requires_grad]

    def objective():
        return objective_of_tokens(model, tokens, targets) + regularization(model, tokens, targets)

    def choose_ranks(step):
        if model.active_peft_config.peft_type == "ADALORA":
            model.base_model.update_and_allocate(step)

    optimize(named, objective, choose_ranks, optimizer)


# What parts of the names of a vit in transformers 5 are in files of networks, where they stay as they were.
IN_FILES = {"vit.layers.": "vit.encoder.layer.", "attention.q_proj": "attention.attention.query",
            "attention.k_proj": "attention.attention.key", "attention.v_proj": "attention.attention.value",
            "attention.o_proj": "attention.output.dense", "mlp.fc1": "intermediate.dense",
            "mlp.fc2": "output.dense"}


def name_in_file(key):
    if key.startswith("vit.layers."):
        for part, in_file in IN_FILES.items():
            key = key.replace(part, in_file)
    return key


def save_adapter(model, folder):
    save_folder(model.float(), folder)
    model.double()
    if not model.active_peft_config.is_prompt_learning:
        return
    encoder = model.prompt_encoder[model.active_adapter].state_dict()
    if len(encoder) > 1:
        save_file({key: value.float().contiguous() for key, value in encoder.items()},
                  folder / "encoder.safetensors")


def save_folder(model, folder):
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = None
    if isinstance(config.get("target_modules"), list):
        config["target_modules"].sort()  # a set there, in another order each time
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def load_base(family):
    torch.manual_seed(2)
    settings = {}
    if family == "mixtral" and not transformers.__version__.startswith("4."):
        settings["experts_implementation"] = "eager"  # other products of experts take no float64
    return type(FAMILIES[family]()).from_pretrained(FOLDER / family / "start",
                                                    attn_implementation="eager", **settings)


class Bottleneck(torch.nn.Module):
    """W_up a(W_down x + b_down) + b_up."""

    def __init__(self, width, spec):
        super().__init__()
        middle = width // spec["reduction_factor"]
        self.down = torch.nn.Linear(width, middle)
        self.up = torch.nn.Linear(middle, width)
        self.activation = ACTIVATIONS[spec["non_linearity"]]
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.1)

    def forward(self, x):
        return self.up(self.activation(self.down(x)))


def add_bottlenecks(base, family, method):
    """Bottlenecks after sub-layers, or next to the MLP, by the layer that ends the sub-layer."""
    attention, mlp, first = SUB_LAYERS[family]
    stream, index, norm = STREAMS[family]
    layers, added = dict(base.named_modules()), {}
    scale = BOTTLENECKS[method].get("scaling", 1)

    def add(name, begin, place, of_input):
        """Adds to what a layer makes, y, what the bottleneck makes of of_input(x, y), where x is the
        input of a layer before, by its place, if there is one."""
        added[name] = bottleneck = Bottleneck(base.config.hidden_size, BOTTLENECKS[method]).double()
        read = []
        if begin:
            layers[begin].register_forward_pre_hook(lambda _, inputs: read.append(inputs[place]))

        def changed(_, __, out):
            y, *others = out if isinstance(out, tuple) else (out,)  # what routers make
            y = y + scale * bottleneck(of_input(read.pop() if begin else None, y))
            return (y, *others) if others else y

        layers[name].register_forward_hook(changed)

    for name in layers:
        block = name[:-len(mlp)]
        if method == "houlsby" and name.endswith("." + attention):
            add(name, None, 0, lambda _, y: y)
        elif not name.endswith("." + mlp) or name.endswith("attention." + mlp):
            continue
        elif method == "houlsby":
            add(name, None, 0, lambda _, y: y)
        elif method == "parallel":
            add(name, block + first, 0, lambda x, _: x)
        elif norm is None:  # MAD-X (Pfeiffer et al. 2020)
            add(name, block + stream, index, lambda x, y: x + y)
        else:
            add(name, block + stream, index, lambda x, y, norm=layers[block + norm]: norm(x + y))
    return added


def write_bottlenecks(family, method):
    base = load_base(family).double().eval().requires_grad_(False)
    folder = FOLDER / family / method
    added = add_bottlenecks(base, family, method)
    named = [(f"{name}.adapter_{key}", parameter) for name, bottleneck in added.items()
             for key, parameter in bottleneck.named_parameters()]

    def save(state):
        (folder / state).mkdir(parents=True, exist_ok=True)
        config = {"version": VERSIONS.get(method, 1),
                  "adapter": {"method": method, **BOTTLENECKS[method]}}
        (folder / state / "weft_adapter.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file({key: parameter.detach().float() for key, parameter in named},
                  folder / state / "weft_adapter.safetensors")

    save("start")
    tokens, targets = read_batch(FOLDER / family)
    optimize(named, lambda: objective_of(base, tokens, targets))
    save("trained")


def write_bitfit(family):
    """Ben Zaken et al. 2021: all biases, and nothing else."""
    base = load_base(family).double().eval().requires_grad_(False)
    named = [(key, parameter.requires_grad_()) for key, parameter in base.named_parameters()
             if key.endswith(".bias")]
    tokens, targets = read_batch(FOLDER / family)
    optimize(named, lambda: objective_of(base, tokens, targets))
    (FOLDER / family / "bitfit").mkdir(exist_ok=True)
    save_file({key: parameter.detach().float() for key, parameter in named},
              FOLDER / family / "bitfit/merged.safetensors")


def write_case(case):
    family, name = case.split("/")
    if family == "quantized":
        return quantized_fixtures().write_case(name)
    if name in BOTTLENECKS:
        return write_bottlenecks(family, name)
    if name == "bitfit":
        return write_bitfit(family)
    folder = FOLDER / family
    config = CASES[case]
    base = load_base(family)
    before = {key: value.clone() for key, value in base.state_dict().items()}
    model = get_peft_model(base, config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Those that start without effect.
            if any(part in key for part in ("lora_B", "ia3_l", "miss_block", "hada_w2_b", "lokr_w1",
                                            "oft_R", "vera_lambda_b", "lora_E", "lora_embedding_A",
                                            "ln_tuning_")):
                if getattr(config, "init_lora_weights", True) is True:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
    save_adapter(model, folder / name / "start")
    if case in STARTS_ALONE:
        return
    batch = read_batch(folder)
    if name.startswith("padded_"):
        batch = padded(*batch)
    train(model, *batch, loraplus_optimizer_of(model) if name == "loraplus" else None)
    save_adapter(model, folder / name / "trained")
    ties = getattr(base.config, "tie_word_embeddings", False)  # a vit has no such field
    if config.is_prompt_learning or name == "embedding" and ties:
        return
    merged = model.double().merge_and_unload().float().state_dict()
    tied = "lm_head.weight" if ties else None
    changed = {name_in_file(key): value.contiguous() for key, value in merged.items()
               if key != tied and not torch.equal(value, before[key])}
    save_file(changed, folder / name / "merged.safetensors")


def quantized_fixtures():
    """make_quantized_fixtures.py, which uses this module, and bitsandbytes."""
    sys.modules.setdefault("make_adapter_fixtures", sys.modules[__name__])
    import make_quantized_fixtures

    return make_quantized_fixtures


def is_of_this_version(case):
    family = case.split("/")[0]
    newer = case.endswith("_5") or family not in ("vit", "mixtral")
    return newer != transformers.__version__.startswith("4.")


def main():
    others = [f"{family}/{name}" for family in SUB_LAYERS for name in (*BOTTLENECKS, "bitfit")
              if name != "bitfit" or family not in ("llama", "mixtral")]  # which have no biases
    if not sys.argv[1:] and is_of_this_version("quantized"):
        others += [f"quantized/{name}" for name in quantized_fixtures().CASES]
    for case in sys.argv[1:] or filter(is_of_this_version, [*CASES, *others]):
        write_case(case)


if __name__ == "__main__":
    main()
