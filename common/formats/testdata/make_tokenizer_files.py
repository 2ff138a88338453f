"""Writes small tokenizer files of real formats, and what the reference implementations make of texts.

tokenizers/             WordPiece, Unigram, byte-level BPE, SentencePiece and tiktoken files, trained
                        on the made-up text below
tokenizer_files.json    for each: texts with their ids and the text of these ids

Run: python make_tokenizer_files.py   (needs tokenizers, sentencepiece, tiktoken)
"""

import base64
import json
import pathlib
import random
import unicodedata

import sentencepiece
import tiktoken
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "tokenizers"
FOLDER.mkdir(exist_ok=True)
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
SPECIAL = "[CLS] </s> <s> [MASK] <unk>"
ALPHABET = (
    list("abcdefghijABCDEFGHIJ'''sStTmMdDlLvVrReE   \n\r\t0123456789.,;:!?-_()<>|#@$%^&*")
    + list("éßñøſİıǅʼàΩπβжщשאمحنमกข你好東京語한글") + ["e\u0301", "a\u0308\u0323", "\u0130", "\u0345"]
    + list("Ⅷ½²①٣४〇一ﬁＡ") + ["\u00a0", "\u1680", "\u2009", "\u2028", "\u3000", "\u0085", "\u180e",
                               "\u200b", "\ufeff", "\x1c", "\x7f", "\u00ad", "\ufffd"]
    + list("🙂👩‍🚀🇫🇷é️⃣—…«»€™Ⓐ_") + [" ", "  ", "   "])


def words(seed):
    rng = random.Random(seed)
    syllables = ["ka", "lo", "mi", "ren", "sta", "tu", "vel", "on", "é", "an", "bab", "ing", "the", "to"]
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(200)]
    weights = [1 / (i + 1) for i in range(len(lexicon))]
    lines = []
    for _ in range(400):
        line = rng.choices(lexicon, weights, k=rng.randint(3, 12))
        line[0] = line[0].capitalize()
        lines.append(" ".join(line) + rng.choice([".", "!", "?", ", 12.", " 1995;"]))
    return lines


def texts():
    rng = random.Random(5)
    out = ["", " ", "Hello world", "Hello, world!  \n\n  I'll test   12345 tokens.",
           "naïve café — 東京 🙂 don't DON'T", "    indented\tcode();\r\n\r\nx = 3.14159\n",
           "\u00a0non\u00a0breaking\u2009space ", "Kalo renstatu kalotoing, the mi.", "a" * 300,
           "ka" * 80, "東京" * 30, "\u200b\u200d\x00\x01", SPECIAL, "▁a▁ ▁b",
           "##ing ##", "    a     b", "e\u0301e\u0301 ﬁ½ Ⅷ", "it'ſ I'LL we'Re"]
    out += [" ".join(words(9)[i : i + 2]) for i in range(0, 30, 2)]
    out += ["".join(rng.choices(ALPHABET, k=rng.randint(1, 40))) for _ in range(90)]
    return [unicodedata.normalize("NFC", t) if i % 3 == 0 else t for i, t in enumerate(out)]


TEXTS = texts()
LINES = words(1)
golden = {}


def record(name, encode, decode, skip=()):
    cases = []
    for text in TEXTS:
        if text in skip:
            continue
        ids = list(encode(text))
        cases.append({"text": text, "ids": ids, "decoded": decode(ids)})
    golden[name] = cases


def record_hf(name, tokenizer):
    """Special tokens as text: the reference sees a copy without them."""
    path = FOLDER / name
    path.write_text(tokenizer.to_str(pretty=True) + "\n")
    plain = json.loads(tokenizer.to_str())
    vocab = plain["model"]["vocab"]
    vocab = {p for p, _ in vocab} if isinstance(vocab, list) else set(vocab)
    for token in plain["added_tokens"]:
        if token["special"] and token["content"] not in vocab:
            token["content"] = "\ue000%d\ue000" % token["id"]  # keeps its id, is in no text
    plain["added_tokens"] = [t for t in plain["added_tokens"]
                             if not t["special"] or t["content"] not in vocab]
    plain["post_processor"] = None
    plain = Tokenizer.from_str(json.dumps(plain))
    # Even so the reference finds pieces that are special in a Unigram vocabulary.
    skip = [SPECIAL] if isinstance(plain.model, models.Unigram) else []
    record(name, lambda t: plain.encode(t, add_special_tokens=False).ids,
           lambda ids: tokenizer.decode(ids, skip_special_tokens=False), skip)


def wordpiece():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for name, lower in (("bert", True), ("bert_cased", False)):
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False,
                                            initial_alphabet=list("0123456789.,;:!?'-東京é한🙂"))
        tokenizer.train_from_iterator(LINES, trainer)
        ids = {t: tokenizer.token_to_id(t) for t in special}
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])])
        record_hf(name + ".json", tokenizer)
        vocab = tokenizer.get_vocab()
        (FOLDER / (name + ".vocab.txt")).write_text("\n".join(sorted(vocab, key=vocab.get)) + "\n")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(),
                                                 normalizers.Lowercase(), normalizers.Strip(),
                                                 normalizers.Replace("ka", "ko")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(),
                                                       pre_tokenizers.Digits(individual_digits=True)])
    record_hf("wordpiece_parts.json", tokenizer)


def train_sentencepiece(prefix, **options):
    corpus = FOLDER / "corpus.tmp"
    corpus.write_text("\n".join(LINES) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(FOLDER / prefix), minloglevel=2, num_threads=1, **options)
    corpus.unlink()
    (FOLDER / (prefix + ".vocab")).unlink()
    return FOLDER / (prefix + ".model")


def sentencepieces():
    rules = FOLDER / "rules.tmp"
    rows = [("ﬁ", "fi"), ("½", "1/2"), ("Ⅷ", "VIII"), ("\u00a0", " "), ("\u2009", " "), ("\u3000", " "),
            ("\t", " "), ("\n", " "), ("\r", ""), ("\u200b", ""), ("e\u0301", "é"), ("Ａ", "A"),
            ("①", "1"), ("…", "...")]
    rules.write_text("".join("%s\t%s\n" % (" ".join("%X" % ord(c) for c in a),
                                            " ".join("%X" % ord(c) for c in b)) for a, b in rows))
    unigram = train_sentencepiece("unigram", vocab_size=180, model_type="unigram", pad_id=3,
                                  normalization_rule_tsv=str(rules))
    bpe = train_sentencepiece("bpe", vocab_size=420, model_type="bpe", byte_fallback=True,
                              normalization_rule_name="identity", remove_extra_whitespaces=False,
                              split_digits=True, user_defined_symbols=["<tool>"])
    rules.unlink()
    for path in (unigram, bpe):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        # The library writes the unknown token in another way.
        record(path.name, processor.encode, lambda ids: processor.decode(ids).replace(" ⁇ ", "<unk>"))
    return unigram


def charsmap_of(model):
    data = model.read_bytes()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    vocab = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    # ModelProto field 3 is the normalizer; its field 2 the map.
    def fields(buffer):
        at = 0
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = buffer[at]; at += 1
                value |= (byte & 127) << shift; shift += 7
                if byte < 128:
                    return value
        while at < len(buffer):
            key = varint()
            if key & 7 == 2:
                size = varint(); yield key >> 3, buffer[at : at + size]; at += size
            elif key & 7 == 5:
                at += 4
            else:
                varint()
    normalizer = [v for k, v in fields(data) if k == 3][0]
    return vocab, [v for k, v in fields(normalizer) if k == 2][0]


def unigrams(model):
    vocab, charsmap = charsmap_of(model)
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap),
                                                 normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = metaspace
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in ("<unk>", "<s>", "</s>", "<pad>")])
    tokenizer.add_special_tokens([AddedToken("<mask>", special=True, lstrip=True, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)])
    record_hf("t5.json", tokenizer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    record_hf("xlmr.json", tokenizer)
    bytes_ = [("<0x%02X>" % b, -20.0) for b in range(256)]
    tokenizer = Tokenizer(models.Unigram(vocab + bytes_, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>", "<pad>")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    record_hf("unigram_bytes.json", tokenizer)


def byte_bpes():
    def trained(splitter, size):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = splitter
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(LINES, trainer)
        return tokenizer
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    qwen = trained(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), byte_level]),
                   330)
    qwen.normalizer = normalizers.NFC()
    qwen.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    record_hf("qwen2.json", qwen)
    neox = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), 330)
    neox.normalizer = normalizers.NFC()
    neox.add_special_tokens(["<|endoftext|>", "<|padding|>"])
    neox.add_tokens([AddedToken(" " * n, normalized=True) for n in (4, 3, 2)])
    record_hf("neox.json", neox)
    base = trained(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level]),
                   360)
    vocab = base.get_vocab()
    alphabet = json.loads(base.to_str())["model"]["vocab"]
    inverse = {c: b for b, c in bytes_to_unicode().items()}
    ranks = {bytes(inverse[c] for c in token): i
             for i, token in enumerate(sorted(alphabet, key=vocab.get))}
    (FOLDER / "llama3").mkdir(exist_ok=True)
    (FOLDER / "llama3" / "pattern.txt").write_text(LLAMA3 + "\n")
    special = {"<|begin_of_text|>": 360, "<|end_of_text|>": 361, "<|eot_id|>": 369}
    (FOLDER / "llama3" / "added_tokens.json").write_text(json.dumps(special) + "\n")
    (FOLDER / "llama3" / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
         "eos_token": "<|end_of_text|>", "add_bos_token": True}) + "\n")
    (FOLDER / "llama3" / "ranks.tiktoken").write_text(
        "".join(base64.b64encode(t).decode() + " %d\n" % r for t, r in ranks.items()))
    encoding = tiktoken.Encoding("small", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
    record("ranks.tiktoken", encoding.encode_ordinary, encoding.decode)


def bytes_to_unicode():
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


wordpiece()
unigrams(sentencepieces())
byte_bpes()
lines = ",\n".join('"%s":[\n%s]' % (name, ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
                   for name, cases in golden.items())
(HERE / "tokenizer_files.json").write_text("{" + lines + "}\n")
