#!/usr/bin/env python3
"""Trains docs/examples/sft.yaml whole and asks the exported model its questions in transformers.

    tests/parity/check_chat_example.py build/release/bin PYTHON...

PYTHON: interpreters with torch and transformers, one with 4.57 and one with the newest 5, as for
check_exports.py. In each of them every question of the example goes through `apply_chat_template` and
`generate`, and so it does through `weft generate --chat`. By hand, when the example or what is exported
changes: it takes some minutes, and torch is too large for the gate.

An answer is right when it is that of the training, character for character: the example learns its
questions by heart. None is held out, since no answer follows from the others: every one is asked. RIGHT of them must be
right, by each version of transformers and by weft. The answers of transformers must be those of weft; TIES allows for
two most probable tokens that rounding orders differently. Then it writes testdata/chat_example_checked.json, which
belongs in the commit: the SHA-256 of the example and of the exported files except the weights, which depend on the
processor, and how many answers were right, ended with the token that ends an answer, and were those of
weft. tests/cli/examples_test.py fails when the example or these files are other ones.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples"
RECORD = ROOT / "tests/parity/testdata/chat_example_checked.json"
VERSIONS = ("4.57", "5")
MOST_TOKENS = 64  # of an answer, where the context has as many left
TIES = 0.01
RIGHT = 0.9
SHOWN = 3


def questions():
    """Each question with its answer."""
    rows = [json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text().splitlines()]
    return [[message["content"] for message in row["messages"]] for row in rows]


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def answers_in_transformers(folder):
    """In an environment with transformers: of each question the text, the most tokens that it could have,
    and whether it has ended by itself."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    stops = model.generation_config.eos_token_id
    stops = stops if isinstance(stops, list) else [stops]
    answers = []
    for question, _ in questions():
        inputs = tokenizer.apply_chat_template([{"role": "user", "content": question}],
                                               add_generation_prompt=True, return_dict=True,
                                               return_tensors="pt")
        asked = inputs["input_ids"].shape[1]
        most = min(MOST_TOKENS, model.config.max_position_embeddings - asked)
        with torch.no_grad():
            out = model.generate(**inputs, max_new_tokens=most, do_sample=False)
        ids = out[0, asked:].tolist()
        text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        answers.append({"text": text.strip(), "tokens": most, "ended": ids[-1] in stops})
    return answers


def ask_all(folder, result):
    import transformers
    transformers.logging.set_verbosity_error()
    result.write_text(json.dumps({"version": transformers.__version__,
                                  "answers": answers_in_transformers(folder)}))


def answers_of_weft(weft, folder, most):
    """Of each question the text, of at most that many tokens."""
    answers = []
    for (question, _), tokens in zip(questions(), most):
        answer = weft("generate", folder, "--chat", "--prompt", question, "--temperature", 0,
                      "--tokens", tokens, "-o", "json")
        answers.append(json.loads(answer)["text"].strip())
    return answers


def right(texts):
    return sum(text == answer.strip() for text, (_, answer) in zip(texts, questions()))


def record_of(exported, runs, own):
    """What the record says of an export, of what each version of transformers has answered, and weft."""
    texts = [answer["text"] for answer in runs[0]["answers"]]
    return {
        "example": sha256(EXAMPLES / "sft.yaml"),
        "questions": sha256(EXAMPLES / "questions.jsonl"),
        "files": {path.name: sha256(path) for path in sorted(exported.iterdir())
                  if path.suffix != ".safetensors"},
        "asked": len(own),
        "right_in_weft": right(own),
        "runs": [{"transformers": run["version"],
                  "right": right([answer["text"] for answer in run["answers"]]),
                  "ended": sum(answer["ended"] for answer in run["answers"]),
                  "same_as_weft": sum(answer["text"] == text
                                      for answer, text in zip(run["answers"], own))}
                 for run in runs],
        "first_answers": [{"question": question, "answer": text}
                          for (question, _), text in zip(questions()[:SHOWN], texts)],
    }


def failure_of(record):
    """What the example does not do, as a sentence, or None."""
    asked = record["asked"]
    answered = [("weft", record["right_in_weft"])]
    answered += [(f"transformers {run['transformers']}", run["right"]) for run in record["runs"]]
    for program, found in answered:
        if found < RIGHT * asked:
            return f"{program} answers {found} of {asked} questions right, less than {RIGHT:.0%}"
    for run in record["runs"]:
        if run["same_as_weft"] < (1 - TIES) * asked:
            return f"transformers {run['transformers']} answers otherwise than weft"
    return None


def check(binaries, pythons, folder):
    """The record, after a training in `folder`."""
    def weft(*arguments):
        done = subprocess.run([binaries / "weft", *map(str, arguments)], cwd=folder,
                              capture_output=True, text=True,
                              env=dict(os.environ, WEFT_HOME=str(folder / "home")))
        if done.returncode != 0:
            sys.exit(f"failed: weft {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
        return done.stdout

    for name in ("sft.yaml", "questions.jsonl"):
        shutil.copy(EXAMPLES / name, folder)
    run, exported, result = folder / "run", folder / "hf", folder / "result.json"
    weft("train", folder / "sft.yaml", "--run-dir", run)
    summary = json.loads((run / "summary.json").read_text())
    print(f"trained: loss {summary['train_loss_nats']:.3f}, {summary['seconds']:.0f} s", flush=True)
    weft("export", run, "--output", exported)
    runs = []
    for python in pythons:
        subprocess.run([python, __file__, "--ask", exported, result], check=True,
                       env=dict(os.environ, HF_HUB_OFFLINE="1"))
        runs.append(json.loads(result.read_text()))
    own = answers_of_weft(weft, exported, [answer["tokens"] for answer in runs[0]["answers"]])
    return record_of(exported, runs, own)


def main():
    if sys.argv[1] == "--ask":
        return ask_all(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    with tempfile.TemporaryDirectory(prefix="weft-chat-") as folder:
        record = check(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:], pathlib.Path(folder))
    print(json.dumps({key: record[key] for key in ("asked", "right_in_weft", "runs", "first_answers")},
                     indent=1))
    if failure := failure_of(record):
        sys.exit(f"{failure}; no record")
    found = [run["transformers"] for run in record["runs"]]
    if not all(any(each.startswith(version + ".") for each in found) for version in VERSIONS):
        sys.exit(f"no record: it takes transformers {' and '.join(VERSIONS)}")
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {RECORD.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
