"""Tunes a Llama with LoRA or QLoRA by PEFT, transformers and PyTorch; prints its speed as JSON.

The peer of engine_bench --lora-rank: the same architecture on random tokens, LoRA on all linear
layers of the blocks, fused AdamW. In bf16 the network is stored in bf16 and computed by autocast, as
transformers' Trainer does it; QLoRA keeps the network in bitsandbytes' NF4 with double quantisation.
With --alternate it takes turns as engine_bench does.
"""

import argparse
import json
import sys
import tempfile
import time

import bitsandbytes
import peft
import torch
import transformers

from pytorch_transformer import gemm_flops_per_second, memory_bytes, reset_peak_memory


def network(arguments, dtype):
    config = transformers.LlamaConfig(
        vocab_size=arguments.vocabulary, hidden_size=arguments.width,
        intermediate_size=arguments.mlp_width, num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads, num_key_value_heads=arguments.kv_heads,
        max_position_embeddings=arguments.context, use_cache=False, attn_implementation="sdpa")
    if not arguments.quantize:
        return transformers.LlamaForCausalLM(config).to(dtype)
    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=arguments.quantize, bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        transformers.LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
        return transformers.LlamaForCausalLM.from_pretrained(
            folder, quantization_config=quantization, dtype=dtype, device_map="cpu",
            attn_implementation="sdpa", use_cache=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "width", "heads", "kv-heads", "mlp-width", "vocabulary", "context",
                 "batch", "lora-rank"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--family", choices=("llama",))
    parser.add_argument("--quantize", choices=("nf4", "fp4"))
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--alternate", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    memory_before = memory_bytes("VmRSS")
    model = peft.get_peft_model(
        network(arguments, dtype),
        peft.LoraConfig(r=arguments.lora_rank, lora_alpha=arguments.lora_rank,
                        target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, fused=True)
    run = torch.compile(model) if arguments.compile else model

    def step():
        tokens = torch.randint(arguments.vocabulary, (arguments.batch, arguments.context))
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = run(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def run_steps(count):
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            loss = step()
            taken.append(time.perf_counter() - began)
        return taken, loss

    run_steps(arguments.warmup)
    reset_peak_memory()
    seconds, most_memory, loss = [], 0, 0
    if arguments.alternate:
        print("ready", flush=True)
        for line in sys.stdin:
            taken, loss = run_steps(int(line))
            seconds += taken
            most_memory = most_memory or memory_bytes("VmHWM")
            print(json.dumps({"seconds": taken, "gemm_flops_per_second":
                              gemm_flops_per_second(dtype, "cpu")}), flush=True)
    else:
        seconds, loss = run_steps(arguments.steps)
        most_memory = memory_bytes("VmHWM")
    seconds.sort()
    print(json.dumps({
        "framework": f"pytorch {torch.__version__}, transformers {transformers.__version__}, "
                     f"peft {peft.__version__}, bitsandbytes {bitsandbytes.__version__}",
        "trained": sum(p.numel() for p in trained),
        "step_seconds": seconds[len(seconds) // 2],
        "memory_before_bytes": memory_before,
        "peak_memory_bytes": most_memory,
        "loss": loss,
    }))


if __name__ == "__main__":
    main()
