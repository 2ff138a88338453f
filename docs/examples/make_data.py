#!/usr/bin/env python3
"""Writes the data of the examples next to it: topics.jsonl, shapes-*-ubyte.gz, and questions.jsonl
and preferences.jsonl, whose answers are docstrings of Python's standard library (PSF licence; recorded with Python 3.11)."""

import gzip
import importlib
import inspect
import json
import pathlib
import random
import struct

FOLDER = pathlib.Path(__file__).parent

TOPICS = {
    "weaving": (["the weaver", "an old loom", "the shuttle", "a fine warp"],
                ["carries", "crosses", "tightens", "follows"],
                ["the weft", "a linen thread", "the selvage", "every second end"]),
    "sailing": (["the skipper", "a small ketch", "the helmsman", "a stiff breeze"],
                ["rounds", "trims", "reaches", "leaves"],
                ["the mainsail", "the harbour", "a lee shore", "the outer buoy"]),
    "baking": (["the baker", "a warm oven", "the apprentice", "the sour dough"],
               ["kneads", "raises", "browns", "dusts"],
               ["the rye loaf", "a crust", "the flour", "twelve rolls"]),
}


def write_topics(random_):
    lines = []
    for topic, (who, does, what) in TOPICS.items():
        for _ in range(30):
            text = " ".join(random_.choice(words) for words in (who, does, what))
            lines.append({"text": text, "topic": topic})
    random_.shuffle(lines)
    (FOLDER / "topics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def picture(shape, random_, side=12):
    """Bright strokes on noise: 0 horizontal, 1 vertical, 2 diagonal, 3 a frame."""
    at = random_.randrange(2, side - 2)
    size = random_.randrange(2, 5)
    pixels = []
    for y in range(side):
        for x in range(side):
            ring = max(abs(x - side // 2), abs(y - side // 2))
            on = [y == at, x == at, (x - y) % side == at, ring == size][shape]
            pixels.append(random_.randrange(200, 256) if on else random_.randrange(0, 24) // 8 * 8)
    return bytes(pixels)


def write_idx(name, shape, values):
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    with open(FOLDER / name, "wb") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            packed.write(header + values)


def write_shapes(random_, count=160):
    labels = [i % 4 for i in range(count)]
    pictures = b"".join(picture(label, random_) for label in labels)
    write_idx("shapes-images-idx3-ubyte.gz", (count, 12, 12), pictures)
    write_idx("shapes-labels-idx1-ubyte.gz", (count,), bytes(labels))


MODULES = ["builtins", "math", "os.path", "json", "random", "statistics", "textwrap", "shutil", "bisect", "heapq", "itertools",
           "functools", "string", "time"]


def first_paragraph(of):
    text = inspect.cleandoc(of.__doc__ or "").split("\n\n")[0]
    text = " ".join(text.split())
    return text if 20 <= len(text) <= 200 and text.isascii() and "(" not in text[:12] else ""


def write_questions():
    """A conversation for each function of MODULES that says in a few words what it does."""
    lines = []
    for name in MODULES:
        module = importlib.import_module(name)
        for function in sorted(getattr(module, "__all__", None) or dir(module)):
            answer = first_paragraph(getattr(module, function))
            if function.startswith("_") or not callable(getattr(module, function)) or not answer:
                continue
            called = function if name == "builtins" else f"{name}.{function}"
            lines.append({"messages": [{"role": "user", "content": f"What does {called} do?"},
                                       {"role": "assistant", "content": answer}]})
    (FOLDER / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_preferences(random_):
    """To each of every other question its answer, and as the rejected one the same words in disorder."""
    pairs = []
    for line in (FOLDER / "questions.jsonl").read_text().splitlines()[::2]:
        question, answer = json.loads(line)["messages"]
        words = answer["content"].split()
        random_.shuffle(words)
        if words != answer["content"].split():
            pairs.append({"prompt": [question], "chosen": [answer],
                          "rejected": [{"role": "assistant", "content": " ".join(words)}]})
    (FOLDER / "preferences.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))


if __name__ == "__main__":
    write_questions()
    write_preferences(random.Random(3))
    write_topics(random.Random(1))
    write_shapes(random.Random(2))
