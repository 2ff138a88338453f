"""Jobs of the benchmark: small ones that differ in what their steps are made of."""

import gzip
import pathlib
import random
import struct

SIDE = 32  # of an image
WORDS = ("the a one this that old young small great king river sailor road ring dog house light "
         "letter winter morning saw found lost followed carried remembered called left took and "
         "but while because under over near beyond").split()


def write_text(path, sentences=12000):
    rng = random.Random(1)
    path.write_text("".join(" ".join(rng.choices(WORDS, k=rng.randint(5, 14))) + ". "
                            for _ in range(sentences)))


def write_images(folder, count=512):
    """Grey images of four classes, as IDX files."""
    rng = random.Random(1)
    labels = bytes(rng.randrange(4) for _ in range(count))
    pixels = bytearray()
    for label in labels:
        for y in range(SIDE):
            for x in range(SIDE):
                bright = (x if label & 1 else y) // 8 % 2 == label >> 1
                pixels.append((160 if bright else 60) + rng.randrange(40))
    images = struct.pack(">IIII", 2051, count, SIDE, SIDE) + pixels
    with gzip.open(folder / "pictures-images-idx3-ubyte.gz", "wb") as file:
        file.write(images)
    with gzip.open(folder / "pictures-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">II", 2049, count) + labels)


def write_data(folder: pathlib.Path):
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "text.txt").exists():
        write_text(folder / "text.txt")
        write_images(folder)


def job(family, layers, width, length, batch, precision, ranks, threads=1, **resources):
    """All but the name and the number of steps."""
    model = {"family": family, "layers": layers, "width": width, "heads": width // 64}
    train = {"global_batch": batch, "precision": precision}
    if family == "vit":
        model.update(image_size=SIDE, patch_size=SIDE // length, image_channels=1)
        data = {"train": ["pictures-images-idx3-ubyte.gz"]}
    else:
        model.update(context=length)
        data = {"train": ["text.txt"], "tokenizer": {"vocab_size": 512}}
    return {"model": model, "data": data, "train": train,
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"kind": "constant", "warmup_steps": 1},
            "checkpoint": {"every_steps": 100000},
            "resources": {"device": "cpu", "ranks": ranks, "threads_per_rank": threads,
                          **resources}}


def sparse(dense):
    """The same job with 2:4 sparse MLPs in every step, and masks every ten."""
    sparsity = {"method": "masked_decay", "mask_interval": 10, "dense_share": 0, "require": True}
    return {**dense, "train": {**dense["train"], "sparsity": sparsity}}


SPARSE = "-sparse24"  # ends the name of a job that another one is the dense form of


def jobs():
    """By name, in the order in which they run."""
    on_host = {"offload_optimizer": "host", "device_memory_bytes": 1 << 30}
    all_jobs = {
        "gpt2-fp32": job("gpt2", 4, 256, 128, 8, "fp32", 1),
        "gpt2-fp32-2-threads": job("gpt2", 4, 256, 128, 8, "fp32", 1, 2),
        "gpt2-bf16-2-threads": job("gpt2", 4, 256, 128, 8, "bf16", 1, 2),
        "gpt2-wide": job("gpt2", 2, 768, 64, 8, "fp32", 1, 2),
        "gpt2-deep-2-ranks": job("gpt2", 10, 192, 64, 16, "fp32", 2),
        "gpt2-bf16-2-ranks": job("gpt2", 4, 256, 128, 16, "bf16", 2),
        "gpt2-long": job("gpt2", 4, 256, 512, 2, "fp32", 1),
        "gpt2-long-2-ranks": job("gpt2", 3, 256, 512, 4, "fp32", 2),
        "gpt2-blocks-again": job("gpt2", 4, 320, 128, 8, "fp32", 1, 2, recompute="block"),
        "gpt2-attention-again": job("gpt2", 4, 256, 256, 4, "fp32", 1, 2, recompute="attention"),
        "gpt2-passes": job("gpt2", 4, 192, 64, 32, "fp32", 2, micro_batch=2),
        "gpt2-zero1": job("gpt2", 4, 256, 128, 8, "fp32", 2, zero_stage=1),
        "gpt2-zero2": job("gpt2", 4, 256, 128, 16, "fp32", 2, zero_stage=2, micro_batch=4),
        "gpt2-zero3": job("gpt2", 4, 256, 128, 16, "fp32", 2, zero_stage=3),
        "gpt2-zero3-4-ranks": job("gpt2", 4, 256, 64, 16, "fp32", 4, zero_stage=3),
        "gpt2-tensor": job("gpt2", 4, 256, 128, 8, "fp32", 2, tensor_parallel=2),
        "gpt2-tensor-4-ranks": job("gpt2", 4, 256, 64, 8, "bf16", 4, tensor_parallel=2),
        "gpt2-pipeline": job("gpt2", 4, 256, 128, 16, "fp32", 2, pipeline_parallel=2,
                             micro_batch=2),
        "gpt2-zero1-8-ranks": job("gpt2", 4, 128, 64, 32, "fp32", 8, zero_stage=1),
        "gpt2-optimizer-on-host": job("gpt2", 4, 320, 64, 4, "bf16", 1, 2, **on_host),
        "gpt2-activations-on-host": job("gpt2", 6, 256, 128, 8, "fp32", 1, 2, recompute="none",
                                        offload_activations="host", device_memory_bytes=1 << 30),
        "gpt2-all-on-host": job("gpt2", 6, 256, 64, 8, "fp32", 1, 2, offload_activations="host",
                                offload_parameters="host", **on_host),
        "llama-fp32": job("llama", 4, 256, 128, 8, "fp32", 1, 2),
        "llama-bf16-2-ranks": job("llama", 5, 320, 128, 8, "bf16", 2),
        "llama-4-ranks": job("llama", 4, 256, 128, 8, "fp32", 4),
        "llama-8-ranks": job("llama", 6, 128, 64, 16, "fp32", 8),
        "bert-fp32": job("bert", 4, 256, 128, 8, "fp32", 1, 2),
        "bert-2-ranks": job("bert", 6, 192, 128, 16, "bf16", 2),
        "vit-fp32": job("vit", 4, 192, 8, 32, "fp32", 1, 2),
        "vit-4-ranks": job("vit", 4, 192, 8, 32, "fp32", 4, zero_stage=2),
        "gpt2-wider": job("gpt2", 1, 1024, 128, 8, "fp32", 1, 2),
    }
    for name in ("gpt2-wide", "gpt2-wider"):
        all_jobs[name + SPARSE] = sparse(all_jobs[name])
    return all_jobs
