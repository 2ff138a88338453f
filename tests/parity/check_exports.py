#!/usr/bin/env python3
"""Uses exports as people use them, in transformers, and compares with the engine.

exports_test leaves exports of each family with each kind of tokenizer, and what the engine makes of
texts and pictures; and adapters of each method of peft with the networks that they are for. In each of the given Python environments this
  - loads them with AutoTokenizer and AutoModelFor...: no weight may be missing or left over,
  - compares the logits of `model(**tokenizer(text))` (or a pair of texts, or a picture),
  - compares what `generate(**tokenizer(prompt))` continues a prompt with, and what
    `generate(**apply_chat_template(messages))` answers,
  - encodes the texts of common/formats/testdata/tokenizer_files.json, which must give their ids,
  - loads the adapters with peft, which may warn of nothing, and compares the logits.

    tests/parity/check_exports.py build/release/bin/exports_test PYTHON...

PYTHON: interpreters with torch, transformers, peft and pillow, one with 4.57 and one with the newest 5. By
hand, when what is exported changes: torch takes gigabytes, too much for the gate.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "common/formats/testdata/tokenizer_files.json"
# Rounding of float32 sums in another order.
TOLERANCE = 2e-5


def difference_of(logits, expected):
    """The largest difference; 0 where it is one of rounding."""
    import torch
    difference = (logits - torch.tensor(expected)).abs().max().item()
    return 0 if difference <= TOLERANCE * max(1, logits.abs().max().item()) else difference


def check_adapter(folder, auto, facts):
    """As check, for an adapter of peft and the network it is for. None where this version of
    transformers names the modules of the network otherwise than its files, as 5.24 those of a vit."""
    import torch
    from peft import PeftModel
    wrong = []
    base = auto.from_pretrained(folder / "hf")
    if hasattr(base, "vit") and not hasattr(base.vit, "encoder"):
        return None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    # peft warns so of the AdaLoRAs that it saves itself, and of each adapter of an embedding that a
    # classifier shares.
    usual = ("The following rank_pattern keys did not match any targeted module",
             "Model has `tie_word_embeddings=True` and a tied layer is part of the adapter")
    wrong += [str(each.message) for each in warned
              if "/peft/" in each.filename and not str(each.message).startswith(usual)]
    for row in facts["rows"]:
        if row["pixels"]:
            side = int(len(row["pixels"]) ** 0.5)
            inputs = {"pixel_values": torch.tensor(row["pixels"]).reshape(1, 1, side, side)}
        else:
            inputs = {"input_ids": torch.tensor([row["ids"]])}
        with torch.no_grad():
            logits = model(**inputs).logits.float()
        if row["ids"]:
            logits = logits[:, -len(row["ids"]):]  # without those of virtual tokens
        if difference := difference_of(logits.flatten(), row["logits"]):
            wrong.append(f"logits differ by {difference}")
    return wrong


def check(folder):
    """In an environment with transformers: what differs, as a list of sentences."""
    import numpy
    import torch
    from PIL import Image
    from transformers import (AutoImageProcessor, AutoModelForCausalLM, AutoModelForImageClassification,
                              AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer)
    facts = json.loads((folder / "facts.json").read_text())
    architecture = json.loads((folder / "hf/config.json").read_text())["architectures"][0]
    kinds = {"ForCausalLM": AutoModelForCausalLM, "LMHeadModel": AutoModelForCausalLM,
             "ForMaskedLM": AutoModelForMaskedLM,
             "ForSequenceClassification": AutoModelForSequenceClassification,
             "ForImageClassification": AutoModelForImageClassification}
    auto = next(kind for ending, kind in kinds.items() if architecture.endswith(ending))
    if "adapter" in facts:
        return check_adapter(folder, auto, facts)
    model, info = auto.from_pretrained(folder / "hf", output_loading_info=True)
    model = model.eval()
    wrong = [f"{what} {info[what]}" for what in ("missing_keys", "unexpected_keys", "mismatched_keys")
             if info[what]]
    pictures = facts["texts"] == 0
    use = (AutoImageProcessor if pictures else AutoTokenizer).from_pretrained(folder / "hf")
    for row in facts["rows"]:
        if pictures:
            side = int(len(row["pixels"]) ** 0.5)
            image = numpy.array(row["pixels"], dtype=numpy.uint8).reshape(side, side)
            inputs = use(Image.fromarray(image), return_tensors="pt")
        else:
            inputs = use(*row["texts"], return_tensors="pt")
            if inputs["input_ids"][0].tolist() != row["ids"]:
                wrong.append(f"{row['texts']} is {inputs['input_ids'][0].tolist()}, in the engine {row['ids']}")
                continue
        with torch.no_grad():
            logits = model(**inputs).logits.float().flatten()
        if difference := difference_of(logits, row["logits"]):
            wrong.append(f"logits of {row.get('texts', 'a picture')} differ by {difference}")
    if "prompt" in facts:
        inputs = use(facts["prompt"], return_tensors="pt")
        out = model.generate(**inputs, max_new_tokens=12, do_sample=False)
        ids = out[0, inputs["input_ids"].shape[1]:].tolist()
        if ids != facts["generated"]:
            wrong.append(f"generates {ids}, the engine {facts['generated']}")
    if "chat" in facts:
        chat = facts["chat"]
        inputs = use.apply_chat_template(chat["messages"], add_generation_prompt=True, return_dict=True, return_tensors="pt")
        if inputs["input_ids"][0].tolist() != chat["ids"]:
            wrong.append(f"the chat is {inputs['input_ids'][0].tolist()}, in the engine {chat['ids']}")
        if model.generation_config.eos_token_id != chat["stops"]:
            wrong.append(f"a text ends with {model.generation_config.eos_token_id}, in the engine {chat['stops']}")
        out = model.generate(**inputs, max_new_tokens=12, do_sample=False)
        ids = out[0, inputs["input_ids"].shape[1]:].tolist()
        if ids != chat["generated"]:
            wrong.append(f"answers {ids}, the engine {chat['generated']}")
    if facts["tokenizer"] and "chat" not in facts:
        name = pathlib.Path(facts["tokenizer"]).name.replace(".vocab.txt", ".json")
        golden = json.loads(GOLDEN.read_text()).get(name, [])
        # These read special tokens in a text, which to the engine are plain text.
        cases = [case for case in golden
                 if not any(token in case["text"] for token in use.get_vocab() if token[0] in "<[" and len(token) > 2)]
        other = [case["text"] for case in cases
                 if use(case["text"], add_special_tokens=False)["input_ids"] != case["ids"]]
        if other or not cases:
            wrong.append(f"{len(other)} of {len(cases)} texts are encoded otherwise: {other[:5]}")
    return wrong


def main():
    if sys.argv[1] == "--check":
        import transformers
        transformers.logging.set_verbosity_error()
        print(f"transformers {transformers.__version__}")
        failed = False
        for folder in sorted(pathlib.Path(sys.argv[2]).iterdir()):
            wrong = check(folder)
            failed |= bool(wrong)
            said = "not checked: other names of modules" if wrong is None else "; ".join(wrong) or "equal"
            print(f"{folder.name}: {said}", flush=True)
        sys.exit(failed)
    with tempfile.TemporaryDirectory(prefix="weft-exports-") as root:
        subprocess.run([sys.argv[1], "--gtest_brief=1"], check=True, env=dict(os.environ, WEFT_EXPORTS=root))
        failed = False
        for python in sys.argv[2:]:
            failed |= subprocess.run([python, __file__, "--check", root],
                                     env=dict(os.environ, HF_HUB_OFFLINE="1")).returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
