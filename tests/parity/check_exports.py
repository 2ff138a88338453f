#!/usr/bin/env python3
"""Uses exports as people use them, in transformers, and compares with the engine.

exports_test leaves exports of each family with each kind of tokenizer, and what the engine makes of
texts and images; and adapters of each method of peft with the networks that they are for. In each of the given Python environments this
  - loads them with AutoTokenizer and AutoModelFor...: no weight may be missing or left over,
  - compares the logits of `model(**tokenizer(text))` (or a pair of texts, or an image),
  - compares what `generate(**tokenizer(prompt))` continues a prompt with, and what
    `generate(**apply_chat_template(messages))` answers,
  - encodes the texts of common/formats/testdata/tokenizer_files.json, which must give their ids,
  - loads the adapters with peft, which may warn of nothing and miss or leave over no key, and compares the
    logits.

    tests/parity/check_exports.py build/release/bin/exports_test PYTHON...

PYTHON: interpreters with torch, torchvision, transformers, peft and pillow, one with 4.57 and one with the newest 5. By
hand, when what is exported changes: torch takes gigabytes, too much for the gate.

Where all are equal in both versions it writes testdata/exports_checked.json, which belongs in the commit: for
each model the versions, the SHA-256 of its files, the ids of the texts, some of the logits, and what it
generates. Of adapters it has hashes of the configuration and of the names, types and shapes of the tensors,
and some logits: they are trained, so the last bits of their numbers depend on the processor. exports_test,
which the gate runs, fails when the engine gives other ones.
"""

import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "common/formats/testdata/tokenizer_files.json"
GOLDEN_GPT2 = ROOT / "common/formats/testdata/tokenizer_golden.json"
RECORD = ROOT / "tests/parity/testdata/exports_checked.json"
VERSIONS = ("4.57", "5")
# Rounding of float32 sums in another order.
TOLERANCE = 2e-5


def difference_of(logits, expected):
    """The largest difference; 0 where it is one of rounding."""
    import torch
    difference = (logits - torch.tensor(expected)).abs().max().item()
    return 0 if difference <= TOLERANCE * max(1, logits.abs().max().item()) else difference


def check_adapter(folder, auto, facts):
    """As check, for an adapter of peft and the network it is for. None where this version of
    transformers names the modules of the network otherwise than the adapter, as 5.24 those of a vit, or
    where the network takes no prefix in it, as a bert in 5.24."""
    import torch
    from peft import PeftModel
    from safetensors import safe_open
    base = auto.from_pretrained(folder / "hf")
    if hasattr(base, "vit"):
        with safe_open(folder / "adapter/adapter_model.safetensors", "pt") as file:
            of_encoder = any(".vit.encoder." in name for name in file.keys())
        if of_encoder != hasattr(base.vit, "encoder"):
            return None
    method = json.loads((folder / "adapter/adapter_config.json").read_text())["peft_type"]
    if method == "PREFIX_TUNING" and hasattr(base, "bert") and \
            "past_key_values" not in inspect.signature(base.bert.forward).parameters:
        return None
    loads, load_adapter = [], PeftModel.load_adapter

    def load_and_keep(*args, **kwargs):
        loads.append(load_adapter(*args, **kwargs))
        return loads[-1]

    with warnings.catch_warnings(record=True) as warned, \
            mock.patch.object(PeftModel, "load_adapter", load_and_keep):
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    # peft warns so of the AdaLoRAs that it saves itself, of each adapter of an embedding that a classifier shares,
    # and of each LN_TUNING: it knows no number of inputs of a norm.
    usual = ("The following rank_pattern keys did not match any targeted module",
             "Model has `tie_word_embeddings=True` and a tied layer is part of the adapter",
             "Unsupported layer type")
    if base.config.model_type == "mixtral":
        # Of the patterns that it makes for experts of transformers 5.
        usual += ("The following alpha_pattern keys did not match any targeted module",)
    if base.config.model_type == "gpt2":
        # A configuration says one thing of all layers, and lm_head is not a Conv1D.
        usual += ("fan_in_fan_out is set to True but the target module is `torch.nn.Linear`",
                  "fan_in_fan_out is set to False but the target module is `Conv1D`")
    wrong = [str(each.message) for each in warned
             if "/peft/" in each.filename and not str(each.message).startswith(usual)]
    # The network that makes virtual tokens is not in files of peft either.
    missing = [key for key in loads[0].missing_keys if "prompt_encoder" not in key]
    # peft reads virtual tokens by themselves, after what it counts.
    unexpected = [key for key in loads[0].unexpected_keys if key != "prompt_embeddings"]
    wrong += [f"{what} {keys}" for what, keys in (("missing keys", missing), ("unexpected keys", unexpected))
              if keys]
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


def golden_texts(name):
    """Texts with the ids that the reference gives them with this file or folder of testdata."""
    if name == "gpt2_part":
        return json.loads(GOLDEN_GPT2.read_text())["encodings"]
    return json.loads(GOLDEN.read_text()).get(name, [])


def check(folder):
    """In an environment with transformers: what differs, as a list of sentences."""
    import numpy
    import torch
    import transformers
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
    # The slow processor of 4.57 takes no images of one channel.
    fast = {"use_fast": True} if pictures and transformers.__version__.startswith("4.") else {}
    use = (AutoImageProcessor if pictures else AutoTokenizer).from_pretrained(folder / "hf", **fast)
    for row in facts["rows"]:
        if pictures:
            side = int((len(row["pixels"]) // row["channels"]) ** 0.5)
            image = numpy.array(row["pixels"], dtype=numpy.uint8).reshape(side, side, row["channels"])
            inputs = use(Image.fromarray(image.squeeze()), return_tensors="pt")
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
        stops = model.generation_config.eos_token_id
        if sorted(stops if isinstance(stops, list) else [stops]) != sorted(facts["stops"]):
            wrong.append(f"a text ends with {stops}, in the engine {facts['stops']}")
    if "chat" in facts:
        chat = facts["chat"]
        inputs = use.apply_chat_template(chat["messages"], add_generation_prompt=True, return_dict=True, return_tensors="pt")
        if inputs["input_ids"][0].tolist() != chat["ids"]:
            wrong.append(f"the chat is {inputs['input_ids'][0].tolist()}, in the engine {chat['ids']}")
        out = model.generate(**inputs, max_new_tokens=12, do_sample=False)
        ids = out[0, inputs["input_ids"].shape[1]:].tolist()
        if ids != chat["generated"]:
            wrong.append(f"answers {ids}, the engine {chat['generated']}")
    if facts["tokenizer"]:
        name = pathlib.Path(facts["tokenizer"]).name.replace(".vocab.txt", ".json")
        # In these it reads special tokens, which to the engine are plain text.
        special = [token.content for token in use.added_tokens_decoder.values() if token.special]
        cases = [case for case in golden_texts(name) if not any(token in case["text"] for token in special)]
        other = [case["text"] for case in cases
                 if use(case["text"], add_special_tokens=False)["input_ids"] != case["ids"]]
        if other or not (cases or "chat" in facts):
            wrong.append(f"{len(other)} of {len(cases)} texts are encoded otherwise: {other[:5]}")
    return wrong


def check_all(exports, result):
    """In an environment with transformers: says what differs, and writes its version, whether something
    differs, and the names of what is equal."""
    import peft
    import transformers
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, peft {peft.__version__}")
    outcomes = {}
    for folder in sorted(exports.iterdir()):
        outcomes[folder.name] = wrong = check(folder)
        said = "not checked: this version has it otherwise" if wrong is None else "; ".join(wrong) or "equal"
        print(f"{folder.name}: {said}", flush=True)
    result.write_text(json.dumps({
        "version": transformers.__version__, "peft": peft.__version__, "failed": any(outcomes.values()),
        "equal": [name for name, wrong in outcomes.items() if wrong == []]}))


def write_record(exports, results):
    """A field a line, so that a change is easy to see."""
    cases = []
    for folder in sorted(exports.iterdir()):
        facts = json.loads((folder / "facts.json").read_text())
        equal = [result for result in results if folder.name in result["equal"]]
        if not equal:
            sys.exit(f"{folder.name}: not compared")
        record = {"transformers": [result["version"] for result in equal]}
        if "adapter" in facts:
            record["peft"] = [result["peft"] for result in equal]
        record |= facts["record"]
        record["logits"] = [round(logit, 6) for logit in record["logits"]]
        fields = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
        cases.append(f"{json.dumps(folder.name)}: {{\n{fields}\n}}")
    RECORD.write_text("{\n" + ",\n".join(cases) + "\n}\n")
    print(f"written: {RECORD.relative_to(ROOT)}")


def main():
    if sys.argv[1] == "--check":
        return check_all(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    with tempfile.TemporaryDirectory(prefix="weft-exports-") as root:
        exports, result = pathlib.Path(root) / "exports", pathlib.Path(root) / "result.json"
        subprocess.run([sys.argv[1], "--gtest_brief=1"], check=True, env=dict(os.environ, WEFT_EXPORTS=str(exports)))
        results = []
        for python in sys.argv[2:]:
            subprocess.run([python, __file__, "--check", exports, result], check=True,
                           env=dict(os.environ, HF_HUB_OFFLINE="1"))
            results.append(json.loads(result.read_text()))
        if any(each["failed"] for each in results):
            sys.exit(1)
        if all(any(each["version"].startswith(version + ".") for each in results) for version in VERSIONS):
            write_record(exports, results)
        else:
            print(f"no record: it takes transformers {' and '.join(VERSIONS)}")


if __name__ == "__main__":
    main()
