#!/usr/bin/env python3
"""Writes the labelled data of the examples beside it: topics.jsonl and shapes-*-ubyte.gz."""

import gzip
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
    """Bright strokes on noise: 0 lying, 1 standing, 2 falling, 3 a frame."""
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


if __name__ == "__main__":
    write_topics(random.Random(1))
    write_shapes(random.Random(2))
