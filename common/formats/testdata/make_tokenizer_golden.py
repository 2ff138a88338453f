"""Writes the tokenizer fixtures next to this file with Python's `tokenizers` as the oracle.

gpt2_part/              the part of GPT-2's vocabulary and merges (MIT, OpenAI) that the texts below
                        need, with ids closed up
tokenizer_golden.json   texts with their ids in that part, texts with their pieces under the GPT-2
                        and Llama 3 patterns, and the merges that a training run finds

Run: python make_tokenizer_golden.py VOCAB_JSON MERGES_TXT   (needs tokenizers)
"""

import json
import pathlib
import random
import sys

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Ids of the whole GPT-2 vocabulary, as published implementations give them.
GOLDEN = {
    "Hello world": [15496, 995],
    "Hello, world!  \n\n  I'll test   12345 tokens.": [
        15496, 11, 995, 0, 220, 220, 628, 220, 314, 1183, 1332, 220, 220, 17031, 2231, 16326, 13],
    "naïve café — 東京 🙂 don't DON'T": [
        2616, 38776, 40304, 851, 10545, 251, 109, 12859, 105, 32485, 836, 470, 23917, 6, 51],
    "    indented\tcode();\r\n\r\nx = 3.14159\n": [
        220, 220, 220, 773, 4714, 197, 8189, 9783, 201, 198, 201, 198, 87, 796, 513, 13, 1415, 19707,
        198],
    "\u00a0non\u00a0breaking\u2009space ": [1849, 13159, 1849, 13395, 447, 231, 13200, 220],
}
ALPHABET = (
    list("abcdefghijABCDEFGHIJ'''sStTmMdDlLvVrReE   \n\r\t0123456789.,;:!?-_()<>|#@$%^&*")
    + list("éßñøſİıǅʼnͅäöàΩπβжщשאمحनमกข你好東京語한글")
    + list("Ⅷ½²①٣४〇一")
    + list("\u00a0\u1680\u2009\u2028\u3000\u0085\u180e\u200b\ufeff\x1c\x00\x7f")
    + list("🙂👩‍🚀🇫🇷é️⃣—…«»€™")
)


def merge(word, ranks, used):
    while len(word) > 1:
        pairs = [ranks.get(pair, len(ranks)) for pair in zip(word, word[1:])]
        best = min(pairs)
        if best == len(ranks):
            return
        at = pairs.index(best)
        used.add(best)
        word = word[:at] + [word[at] + word[at + 1]] + word[at + 2 :]


def gpt2_part(vocab_path, merges_path):
    vocab = json.loads(pathlib.Path(vocab_path).read_text())
    merges = [tuple(line.split(" ")) for line in pathlib.Path(merges_path).read_text().split("\n")
              if line and not line.startswith("#version")]
    whole = Tokenizer(models.BPE(vocab, merges))
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text, ids in GOLDEN.items():
        assert whole.encode(text).ids == ids, text
    rng = random.Random(7)
    texts = list(GOLDEN) + ["".join(rng.choices(ALPHABET, k=rng.randint(1, 30))) for _ in range(100)]
    texts += ["a" * 300, "   " * 50 + "x", "hello" * 40]
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    used = set()
    for text in texts:
        for piece, _ in whole.pre_tokenizer.pre_tokenize_str(text):
            merge(list(piece), ranks, used)
    kept = [merges[rank] for rank in sorted(used)]
    tokens = sorted(vocab, key=vocab.get)[:256] + ["".join(pair) for pair in kept]
    part = {token: i for i, token in enumerate(tokens)}
    old = {vocab[token]: i for token, i in part.items()}
    part["<|endoftext|>"] = len(part)
    folder = HERE / "gpt2_part"
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(part, ensure_ascii=False) + "\n")
    lines = ["#version: 0.2"] + [" ".join(pair) for pair in kept]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    return [{"text": t, "ids": [old[i] for i in whole.encode(t).ids]} for t in texts]


def pieces(splitter, texts):
    out = []
    for text in texts:
        spans = [span for _, span in splitter.pre_tokenize_str(text)]
        out.append({"text": text, "pieces": [text[a:b] for a, b in spans]})
    return out


def split_cases():
    rng = random.Random(11)
    texts = list(GOLDEN) + ["it'ſ I'LL we'Re x'ſe '", "  \n \n\n  x", "a  \r\n\tb\n", " ", "\n  ",
                            "12345 6789012", " 'quoted' ''tis", "\ta\t\tb"]
    texts += ["".join(rng.choices(ALPHABET, k=rng.randint(1, 40))) for _ in range(200)]
    gpt2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    return {
        "gpt2": pieces(pre_tokenizers.Split(Regex(gpt2), "isolated"), texts),
        "llama3": pieces(pre_tokenizers.Split(Regex(LLAMA3), "isolated"), texts),
    }


def training():
    rng = random.Random(3)
    syllables = ["ka", "lo", "mi", "ren", "sta", "tu", "vel", "on", "é", "aa", "bab"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(150)]
    weights = [1 / (i + 1) for i in range(len(words))]
    text = " ".join(rng.choices(words, weights, k=1200)) + " aaaaaaaaa 1000000 1000000\n"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=500, min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([text], trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {"text": text, "vocab_size": 501,
            "merges": [" ".join(m) if isinstance(m, list) else m for m in merges]}


encodings = gpt2_part(sys.argv[1], sys.argv[2])
golden = {"encodings": encodings, "splits": split_cases(), "training": training()}
(HERE / "tokenizer_golden.json").write_text(json.dumps(golden, indent=0, ensure_ascii=True) + "\n")
