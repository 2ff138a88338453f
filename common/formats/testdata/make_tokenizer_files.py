"""Writes small tokenizer files of real formats, and what the reference implementations make of texts.

tokenizers/             WordPiece, Unigram, BPE, SentencePiece and tiktoken files, trained on the made-up
                        text below
tokenizer_files.json    for each: texts with their ids and the text of these ids

Run: python make_tokenizer_files.py [KIND...]   (needs tokenizers, sentencepiece, tiktoken, transformers 4.57)

KIND: a name of KINDS at the end; the files and texts of the others stay as they are. WordPiece is
trained to another vocabulary in each run.
"""

import base64
import json
import pathlib
import random
import re
import shutil
import sys
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
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# As tiktoken has it now; in its older form it is LLAMA3.
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
          r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
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


def mixed_lines(seed):
    """Lines of what patterns treat differently: contractions, capitals, numbers, signs, empty lines."""
    rng = random.Random(seed)
    changes = [lambda w: w, lambda w: w + "'s", lambda w: w.upper() + "'LL", lambda w: w + w.capitalize(),
               lambda w: w.upper() + w, lambda w: w + "//\n", lambda w: "/" + w, lambda w: w + "  \n\n",
               lambda w: w + "e\u0301", lambda w: str(rng.randrange(10 ** 6))]
    return [" ".join(rng.choice(changes)(word) for word in line.split(" ")) for line in words(seed)]


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
MIXED_LINES = mixed_lines(11)
MIXED_TEXTS = TEXTS + mixed_lines(17)[:30]
golden = {}


def record(name, encode, decode, skip=(), texts=TEXTS):
    cases = []
    for text in texts:
        if text in skip:
            continue
        ids = list(encode(text))
        cases.append({"text": text, "ids": ids, "decoded": decode(ids)})
    golden[name] = cases


def record_hf(name, tokenizer, texts=TEXTS):
    (FOLDER / name).write_text(tokenizer.to_str(pretty=True) + "\n")
    record_plain(name, tokenizer, texts)


def record_plain(name, tokenizer, texts):
    """Special tokens as text: the reference sees a copy without them."""
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
           lambda ids: tokenizer.decode(ids, skip_special_tokens=False), skip, texts)


def write_json(path, content):
    path.write_text(json.dumps(content) + "\n")


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


def write_rules():
    rules = FOLDER / "rules.tmp"
    rows = [("ﬁ", "fi"), ("½", "1/2"), ("Ⅷ", "VIII"), ("\u00a0", " "), ("\u2009", " "), ("\u3000", " "),
            ("\t", " "), ("\n", " "), ("\r", ""), ("\u200b", ""), ("e\u0301", "é"), ("Ａ", "A"),
            ("①", "1"), ("…", "...")]
    rules.write_text("".join("%s\t%s\n" % (" ".join("%X" % ord(c) for c in a),
                                            " ".join("%X" % ord(c) for c in b)) for a, b in rows))
    return rules


def sentencepieces():
    rules = write_rules()
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
    unigrams(unigram)


def mixed(parts, count, seed):
    rng = random.Random(seed)
    return ["".join(rng.choices(parts, k=rng.randint(1, 9))) for _ in range(count)]


def user_defined():
    """Pieces that SentencePiece always takes whole: one that begins another, ones that a pattern has
    to escape, ones that the rules would change, and two spaces."""
    symbols = ["<tool>", "<tool>s", "[a+b|c]", "½", "\n", "▁▁"]
    texts = TEXTS[:60] + mixed(symbols + [" ", "  ", "Kalo", "the", "to", "é", "\r\n", "<tool"], 90, 21)
    for symbol in symbols:
        texts += [symbol, symbol + "the", " " + symbol + " the", "a" + symbol + "b", symbol + symbol,
                  "the " + symbol, "the" + symbol + "  "]
    for name, options in (
            ("defined_unigram", {"vocab_size": 180, "model_type": "unigram"}),
            ("defined_bpe", {"vocab_size": 420, "model_type": "bpe", "byte_fallback": True}),
            ("defined_spaces", {"vocab_size": 420, "model_type": "bpe", "byte_fallback": True,
                                "normalization_rule_name": "identity", "add_dummy_prefix": False,
                                "remove_extra_whitespaces": False})):
        rules = write_rules()
        if "normalization_rule_name" not in options:
            options["normalization_rule_tsv"] = str(rules)
        path = train_sentencepiece(name, user_defined_symbols=symbols, **options)
        rules.unlink()
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        record(path.name, processor.encode, lambda ids: processor.decode(ids).replace(" ⁇ ", "<unk>"),
               texts=texts)


def prefix_switches():
    """Folders of a SentencePiece model whose tokenizer_config.json says where a space goes before a
    text, as transformers reads them."""
    from transformers import AutoTokenizer
    texts = ["", " ", "the <|im_start|> kalo"] + [t for t in TEXTS[:20] if t.isascii() and SPECIAL != t]
    texts += [" ".join(words(9)[i : i + 2]) for i in range(0, 30, 2)]
    texts += mixed(["<|im_start|>", "<|im_start|>", " ", "  ", "Kalo", "the", "to", "é", "▁", "12"], 180, 23)
    start = {"content": "<|im_start|>", "lstrip": False, "normalized": False, "rstrip": False,
             "single_word": False, "special": False}
    for name, model, config in (
            ("llama_first", "bpe.model", {"tokenizer_class": "LlamaTokenizer", "legacy": False}),
            ("llama_no_prefix", "bpe.model", {"tokenizer_class": "LlamaTokenizer", "legacy": True,
                                              "add_prefix_space": False}),
            ("t5_first", "unigram.model", {"tokenizer_class": "T5Tokenizer", "legacy": False,
                                           "extra_ids": 0})):
        path = FOLDER / name
        path.mkdir(exist_ok=True)
        shutil.copyfile(FOLDER / model, path / "tokenizer.model")
        size = sentencepiece.SentencePieceProcessor(model_file=str(path / "tokenizer.model")).get_piece_size()
        # transformers knows T5's model by this name alone.
        if name.startswith("t5"):
            (path / "tokenizer.model").rename(path / "spiece.model")
        write_json(path / "tokenizer_config.json", {
            **config, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
            "added_tokens_decoder": {str(size): start}})
        tokenizer = AutoTokenizer.from_pretrained(path)
        # These it normalizes for T5 otherwise than SentencePiece does.
        other = ("▁", "\r") if name.startswith("t5") else ()
        record(name, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
               lambda ids: tokenizer.decode(ids, clean_up_tokenization_spaces=False),
               texts=[t for t in texts if not any(part in t for part in other)])


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


def trained_bytes(splitter, size, lines=LINES, special=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=list(special),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def split_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def record_ranks(folder, name, tokenizer, tiktoken_pattern, json_pattern, special, config, texts):
    """The vocabulary as tiktoken has it, in a folder with the pattern as tokenizer.json writes it."""
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    inverse = {c: b for b, c in bytes_to_unicode().items()}
    ranks = {bytes(inverse[c] for c in token): i
             for i, token in enumerate(sorted(vocab, key=vocab.get))}
    (FOLDER / folder).mkdir(exist_ok=True)
    (FOLDER / folder / "pattern.txt").write_text(json_pattern + "\n")
    write_json(FOLDER / folder / "added_tokens.json", special)
    write_json(FOLDER / folder / "tokenizer_config.json", config)
    (FOLDER / folder / name).write_text(
        "".join(base64.b64encode(t).decode() + " %d\n" % r for t, r in ranks.items()))
    encoding = tiktoken.Encoding("small", pat_str=tiktoken_pattern, mergeable_ranks=ranks,
                                 special_tokens={})
    record(name, encoding.encode_ordinary, encoding.decode, texts=texts)


def byte_bpes():
    qwen = trained_bytes(split_bytes(QWEN2), 330)
    qwen.normalizer = normalizers.NFC()
    qwen.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    record_hf("qwen2.json", qwen)
    neox = trained_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False), 330)
    neox.normalizer = normalizers.NFC()
    neox.add_special_tokens(["<|endoftext|>", "<|padding|>"])
    neox.add_tokens([AddedToken(" " * n, normalized=True) for n in (4, 3, 2)])
    record_hf("neox.json", neox)
    record_ranks("llama3", "ranks.tiktoken", trained_bytes(split_bytes(LLAMA3), 360), LLAMA3, LLAMA3,
                 {"<|begin_of_text|>": 360, "<|end_of_text|>": 361, "<|eot_id|>": 369},
                 {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
                  "eos_token": "<|end_of_text|>", "add_bos_token": True}, TEXTS)


def mixed_byte_bpes():
    """Of SmolLM, GPT-4o, GPT-4 and RoBERTa."""
    smollm = trained_bytes(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                    pre_tokenizers.ByteLevel(add_prefix_space=False)]),
                           400, MIXED_LINES, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    record_hf("smollm.json", smollm, MIXED_TEXTS)
    o200k = trained_bytes(split_bytes(O200K), 400, MIXED_LINES)
    o200k.add_special_tokens(["<|endoftext|>", "<|endofprompt|>"])
    record_hf("o200k.json", o200k, MIXED_TEXTS)
    # In a tokenizer.json the + after {1,3} would repeat it.
    record_ranks("cl100k", "cl100k.tiktoken", trained_bytes(split_bytes(LLAMA3), 400, MIXED_LINES), CL100K,
                 CL100K.replace(r"\p{N}{1,3}+", r"(?>\p{N}{1,3})"), {"<|endoftext|>": 400},
                 {"eos_token": "<|endoftext|>"}, MIXED_TEXTS)
    roberta = trained_bytes(pre_tokenizers.ByteLevel(add_prefix_space=False), 400, MIXED_LINES,
                            ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    (FOLDER / "roberta").mkdir(exist_ok=True)
    roberta.model.save(str(FOLDER / "roberta"))
    write_json(FOLDER / "roberta" / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"})
    record_plain("roberta", roberta, MIXED_TEXTS)


def possessive():
    """A tokenizer.json whose pattern has possessive quantifiers."""
    pattern = CL100K.replace(r"\p{N}{1,3}+", r"(?>\p{N}{1,3})")
    tokenizer = trained_bytes(split_bytes(pattern), 400, MIXED_LINES)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    record_hf("possessive.json", tokenizer, MIXED_TEXTS)


def llama3_chat():
    """A Llama 3 that answers, as it is imported: its tokenizer.json begins texts, three tokens end them,
    and a token for each turn of its chat template is one of these."""
    tokenizer = trained_bytes(split_bytes(LLAMA3), 360)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
               "<|eot_id|>"]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    ids = [tokenizer.token_to_id(t) for t in special]
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[(special[0], ids[0])])])
    path = FOLDER / "llama3_chat"
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(tokenizer.to_str(pretty=True) + "\n")
    write_json(path / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": special[5],
        "clean_up_tokenization_spaces": True, "model_input_names": ["input_ids", "attention_mask"],
        "chat_template":
            "{{- bos_token }}"
            "{%- for message in messages %}"
            "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim"
            " + '<|eot_id|>' }}"
            "{%- endfor %}"
            "{%- if add_generation_prompt %}"
            "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
            "{%- endif %}"})
    ends = {"bos_token_id": ids[0], "eos_token_id": [ids[1], ids[4], ids[5]]}
    write_json(path / "config.json", {"model_type": "llama", **ends})
    write_json(path / "generation_config.json", {**ends, "do_sample": True, "temperature": 0.6, "top_p": 0.9})
    record_plain("llama3_chat", tokenizer, TEXTS)


def llama2():
    """BPE over characters: a space before the text, and bytes where there is no character."""
    special = ["<unk>", "<s>", "</s>"]
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = Tokenizer(models.BPE())
    trained.normalizer = spaces
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # no merges across words
    trained.train_from_iterator(MIXED_LINES, trainers.BpeTrainer(
        vocab_size=460, show_progress=False, special_tokens=special + ["<0x%02X>" % b for b in range(256)]))
    model = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(models.BPE(model["vocab"], [tuple(merge) for merge in model["merges"]],
                                     unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = spaces
    tokenizer.decoder = PIECES_TO_TEXT
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    record_hf("llama2.json", tokenizer, MIXED_TEXTS)


PIECES_TO_TEXT = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                    decoders.Strip(" ", 1, 0)])


def added_to_sentencepiece():
    """Folders of a SentencePiece model and tokens that only the other files have."""
    def folder(name, model, files):
        path = FOLDER / name
        path.mkdir(exist_ok=True)
        shutil.copyfile(FOLDER / model, path / "tokenizer.model")
        for file, content in files.items():
            write_json(path / file, content)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path / "tokenizer.model"))
        start = processor.get_piece_size()

        def encode(text):
            """Each part between the added tokens is a text of its own."""
            ids = []
            for part in re.split(r"(<\|im_start\|>)", text):
                ids += [start] if part == "<|im_start|>" else processor.encode(part)
            return ids

        def decode(ids):
            """Spaces at the start are for the library; behind an added token each is one of the text."""
            at = ids.index(start) if start in ids else len(ids)
            pieces = ["<|im_start|>" if i == start else processor.id_to_piece(i) for i in ids[at:]]
            return processor.decode(ids[:at]).replace(" ⁇ ", "<unk>") + PIECES_TO_TEXT.decode(pieces)

        record(name, encode, decode, texts=TEXTS + [
            "<|im_start|>", "<|im_start|>Kalo the mi<|im_start|>", "the <|im_start|> kalo", "to<|im_start|>to  the",
            "  <|im_start|><|im_start|>  ", "é東<|im_start|>\n🙂 the <|im_start", "<|im_start|>user\nKalo ing."])

    def token(content, special):
        return {"content": content, "lstrip": False, "normalized": False, "rstrip": False,
                "single_word": False, "special": special}

    folder("unigram_added", "unigram.model", {
        "added_tokens.json": {"<|im_start|>": 180, "<|im_end|>": 181},
        "tokenizer_config.json": {"eos_token": "</s>", "additional_special_tokens": ["<|im_end|>"]}})
    # A Llama 2 that was trained on chats, as it is imported: its class begins texts with <s>.
    folder("llama2_chat", "bpe.model", {
        "tokenizer_config.json": {
            "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
            "unk_token": "<unk>", "padding_side": "left", "add_eos_token": False,
            "added_tokens_decoder": {"0": token("<unk>", True), "1": token("<s>", True),
                                     "2": token("</s>", True), "420": token("<|im_start|>", False),
                                     "421": token("<|im_end|>", True)}},
        "config.json": {"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2},
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": [2, 421], "do_sample": True,
                                   "temperature": 0.6, "top_p": 0.9}})


def bytes_to_unicode():
    printable = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


KINDS = {"wordpiece": wordpiece, "sentencepieces": sentencepieces, "byte_bpes": byte_bpes,
         "mixed_byte_bpes": mixed_byte_bpes, "possessive": possessive,
         "llama3_chat": llama3_chat, "llama2": llama2, "user_defined": user_defined, "prefix_switches": prefix_switches,
         "added_to_sentencepiece": added_to_sentencepiece}
GOLDEN = HERE / "tokenizer_files.json"
before = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
for kind in sys.argv[1:] or KINDS:
    KINDS[kind]()
lines = ",\n".join('"%s":[\n%s]' % (name, ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
                   for name, cases in {**before, **golden}.items())
GOLDEN.write_text("{" + lines + "}\n")
