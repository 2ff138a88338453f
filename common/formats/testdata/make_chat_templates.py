#!/usr/bin/env python3
"""Writes testdata/chat_templates/{jinja,chats}.json and the tokenizers there: what jinja2, set up as
transformers does, makes of small templates, and what transformers makes of conversations with the
*.jinja of that folder, whose texts are this project's own.

  jinja.json   {variables, cases: [{template, text or error}]}; an error is true: it must be refused
  chats.json   [{template, tokenizer, messages, tools, prompt, ids, said or null}], or with an error;
               `prompt` is the text with the generation prompt; `said`, where the template marks it, is
               1 for the ids of the assistant

Variables, messages and tools are texts of JSON, whose keys keep their order.

Needs transformers (with jinja2) and tokenizers; run it by hand when the fixtures are to change.
"""

import json
import pathlib

from jinja2.exceptions import TemplateError
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

FOLDER = pathlib.Path(__file__).parent / "chat_templates"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>",
           "<end_of_turn>"]

# Templates by what they show; the variables are VARIABLES.
TEMPLATES = r"""
{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 7 / 2 }} {{ 2 ** -1 }}
{{ 1.5 }} {{ 1e20 }} {{ 0.00001 }} {{ 1e15 }} {{ 100.0 }} {{ 1_000 }} {{ 3.0 * 2 }} {{ 0.1 + 0.2 }}
{{ true }} {{ none }} {{ False }} {{ [1, 'a', none, 2.0] }} {{ (1,) }} {{ (1, 2) }} {{ {'k': [true]} }}
{{ 'it''s' }} {{ "a\tb\n" }} {{ ['it\'s', "a\"b", "\n\\"] }} {{ '\x41\u00e9' }}
{{ name ~ 1 ~ none ~ missing }} {{ name * 2 }} {{ [1] * 3 }} {{ [1] + [2] }}
{{ a.b.c }} {{ a['b']['c'] }} {{ a.nothing }} {{ missing }} {{ items[0] }} {{ items[-1] }} {{ items[9] }} {{ name[1] }}
{{ items[1:] }} {{ items[:-1] }} {{ items[::-1] }} {{ name[::2] }} {{ name[-2:] }} {{ items[5:1] }} {{ 5[0:1] }} {{ items[::-2] }}
{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ 1 != 2 }} {{ 2 >= 3 }} {{ 'a' in name }} {{ 9 not in items }} {{ 'b' in a }}
{{ 1 and 0 }} {{ 0 or 'x' }} {{ not 1 }} {{ not missing }} {{ 'y' if name else 'n' }} {{ 'y' if false }}
{{ name if name is defined else 'none' }} {{ missing is defined }} {{ missing is undefined }} {{ none is none }} {{ 1 is number }}
{{ 'a' is string }} {{ a is mapping }} {{ items is iterable }} {{ items is sequence }} {{ 3 is odd }} {{ 4 is even }} {{ 4 is divisibleby 2 }}
{{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ true is true }} {{ 1 is true }} {{ 1 is in [1, 2] }} {{ 1 is eq 1 }} {{ 2 is gt(1) }}
{{ name is not none and name is not mapping }} {{ items is not string }} {{ range is callable }} {{ name is lower }} {{ 'AB' is upper }} {{ 1 is sameas 1 }}
{{ '  x '|trim }}| {{ 'xxaxx'|trim('x') }} {{ name|upper }} {{ 'ABC'|lower }} {{ 'hELLO wORLD'|capitalize }} {{ "hello big-world (x"|title }}
{{ items|length }} {{ name|length }} {{ 'é日'|length }} {{ missing|length }} {{ a|count }} {{ items|join(', ') }} {{ items|join }} {{ people|join('; ', attribute='name') }}
{{ items|first }} {{ items|last }} {{ name|first }} {{ []|first }} {{ items|sum }} {{ people|sum('age') }} {{ items|max }} {{ items|min }} {{ items|reverse|list }} {{ name|reverse }}
{{ missing|default('d') }} {{ ''|default('d') }} {{ ''|default('d', true) }} {{ none|d('x', boolean=true) }}
{{ people|map(attribute='name')|list }} {{ people|map(attribute='none', default='-')|join }} {{ ['a', 'b']|map('upper')|list }} {{ [' a ']|map('trim')|list }}
{{ people|selectattr('age', 'gt', 30)|map(attribute='name')|list }} {{ people|rejectattr('age', 'gt', 30)|list|length }} {{ people|selectattr('name', 'equalto', 'Ada')|list }}
{{ items|select('odd')|list }} {{ items|reject('odd')|list }} {{ [0, 1, '']|select|list }} {{ people|selectattr('age')|list|length }}
{{ [3, 1, 2]|sort }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }} {{ people|sort(attribute='age')|map(attribute='name')|list }} {{ [3, 1]|sort(reverse=true) }}
{{ ['a', 'A', 'b']|unique|list }} {{ {'b': 1, 'a': 2}|dictsort }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }} {{ {'b': 1, 'a': 2}|items|list }}
{{ '3'|int + 1 }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ 3.9|int }} {{ '2.5'|float }} {{ ' 12 '|int }} {{ -3|abs }} {{ 2.567|round(2) }} {{ 2.5|round }} {{ 3|string ~ '' }}
{{ 'a-b-c'|replace('-', '+') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ "a\nb\n\nc"|indent }} {{ "a\nb"|indent(2, true) }} {{ "a\n\nb"|indent(1, blank=true) }}
{{ a|tojson }} {{ people|tojson }} {{ 'é"\\/<b>\n'|tojson }} {{ [1, 2.0, none, true]|tojson }} {{ {'b': 1, 'a': [] }|tojson(sort_keys=true) }} {{ []|tojson(indent=2) }} {{ 'é😀'|tojson(ensure_ascii=true) }}
{{ a|tojson(indent=2) }} {{ people|tojson(indent=4) }} {{ a|tojson(separators=(',', ':')) }}
{{ name.upper() }} {{ ' x '.strip() }} {{ 'xay'.strip('xy') }} {{ ' x '.lstrip() }}| {{ ' x '.rstrip() }}| {{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.split(none, 1) }} {{ ' a b  c '.rsplit(none, 1) }}
{{ name.startswith('w') }} {{ name.endswith(('x', 't')) }} {{ name.find('t') }} {{ name.find('z') }} {{ 'abab'.rfind('b') }} {{ 'aXbX'.count('X') }} {{ 'é日x'.find('x') }} {{ ', '.join(['a', 'b']) }}
{{ 'hello world'.title() }} {{ "it's".title() }} {{ 'ab'.capitalize() }} {{ 'a\nb\r\nc'.splitlines() }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'aa'.replace('a', 'b', 1) }} {{ 'ab'.replace('', '-') }}
{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ''.isalpha() }} {{ '  '.isspace() }} {{ 'ab'.islower() }} {{ 'Ab'.isupper() }} {{ 'ÄÖ'.lower() }} {{ 'straße'.upper() }}
{{ a.get('b') }} {{ a.get('z') }} {{ a.get('z', 5) }} {{ a.keys()|list }} {{ a.values()|list }} {{ a.items()|list }} {% for k, v in a.items() %}{{ k }}={{ v }}{% endfor %} {{ items.index(2) }} {{ items.count(1) }}
{% for i in items %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for i in items if i is odd %}{{ i }}{{ loop.last }}{% else %}none{% endfor %}{% for i in [] %}x{% else %}empty{% endfor %}{% for c in 'ab' %}[{{ c }}]{% endfor %}{% for k in a %}{{ k }}{% endfor %}
{% for i in items %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in items %}{% for j in 'ab' %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %} {% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}
{% set x = 1 %}{% for i in items %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }} {% set ns = namespace(n=0, s='') %}{% for i in items %}{% set ns.n = ns.n + i %}{% set ns.t = i %}{% endfor %}{{ ns.n }}{{ ns.t }}{{ ns.s }}
{% if 0 %}a{% elif '' %}b{% elif items %}c{% else %}d{% endif %} {% if true %}{% set inner = 5 %}{% endif %}{{ inner }} {% set p, q = 1, 2 %}{{ q }}{{ p }} {% set t = 1, 2 %}{{ t }}
{% macro m(x, y=2) %}<{{ x }}{{ y }}{{ name }}>{% endmacro %}{{ m(1) }}{{ m(1, y=3) }}{{ m(y=4, x=5) }}{{ m() }} {% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% macro late() %}{{ z }}{% endmacro %}{% set z = 9 %}{{ late() }} {{ (late() ~ 'x')|length }} {% set block %}a{{ name }}{% endset %}{{ block }} {% set up | upper %}abc{% endset %}{{ up }} {% filter upper|trim %} abc {% endfilter %} {% with w = 1, v = 2 %}{{ w }}{{ v }}{% endwith %}{{ w }}
{# a comment #}x{#- another -#} y {%- raw %} {{ not this }} {% endraw -%} z {{- ' w' -}} .
{{ range(3)|list }} {{ range(1, 7, 2)|list }} {{ range(3, 0, -1)|list }} {{ dict(a=1, b='x') }} {{ dict(a, z=1) }} {{ strftime_now('no day') }}
{{ {'a': 1}['a'] }} {{ {'a': {'b': 2}}.a.b }} {{ [[1, 2], [3]][0][1] }} {{ 'a' 'b' }} {{ -1|abs }} {{ (-1)|abs }} {{ 'x' * 3 ~ 'y' }} {{ 1 if false else 2 if false else 3 }}
{{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ 1 + 2 | string | length }} {{ not true and false }} {{ 2 + 3 == 5 and 1 }} {{ items | length > 2 }} {{ 'é'[0] }} {{ '日本語'[1:] }}
{{ items[items|length - 1] }} {{ messages[0].role if messages else 'nobody' }} {{ a.b is mapping and a.b.c }} {{ people[0]['name'].upper()[:2] }}
{{ items == [1, 2, 3] }} {{ [1] == (1,) }} {{ [1, 2] < [1, 3] }} {{ {'a': 1} == {'a': 1.0} }} {{ '1' == 1 }} {{ none == missing }} {{ 5 in range(6) }} {{ true + 1 }} {{ 3 > 2.5 }}
""".strip().split("\n")

# Whose lines are part of what they show.
LINES = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "{% for i in items %}\n{{ i }}\n{% endfor %}\n\nend\n\n",
    "  {%+ if true %}x{% endif +%}\ny",
    "x   {{ 1 }}   {% if true %}   y   {% endif %}   z",
    "x\n\t {#- c -#} \n y\n {# d #}\nz",
    "{%- if true -%}\n\n  x  \n\n{%- endif -%}\n y",
    "a\r\nb\r{{ 'c\r\nd' }}\r\n",
    "{{ 1 }}\n{{ 2 }}\n  {{ 3 -}}\n  {{ 4 }}",
    "{% set x = 1 %}  \n  {% set y = 2 %}x\n",
    "{% raw %}\n  {% if %}\n{% endraw %}\n x",
    "{%- macro f() %}\n  a\n  {% if true %}\n  b\n  {% endif %}\n{% endmacro -%}\n[{{ f() }}]",
    "\u00a0\u2003{%- if true %}\u3000{%- endif %} x",
    "{{ {'a': {'b': 1}} }}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}",
    "text {{ '{{' }} {{ '%}' }} { { } {",
    "{% if name == 'weft'\n   and items %}yes\n{% endif %}",
]

REFUSED = [
    "{{ 1 +", "{% if x %}", "{% endif %}", "{{ 'a }}", "{# c", "{{ a b }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ missing.x }}",
    "{{ missing() }}", "{{ name() }}", "{{ raise_exception('no') }}", "{% for x in 5 %}{% endfor %}", "{{ items.append(4) }}", "{{ a.update({'z': 1}) }}",
    "{{ x | nofilter }}", "{{ x is notest }}", "{% set a.b = 1 %}", "{% nothing %}", "{{ 1 | length }}", "{{ range(1000000000) }}", "{{ 'a' < 1 }}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% macro f(x) %}{% endmacro %}{{ f(1, 2) }}", "{{ {'a': 1 }", "{{ ) }}", "{{ a['b'",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ missing + 1 }}", "{{ missing | tojson }}", "{{ [1, 'a'] | sort }}", "{{ ''.join([1]) }}",
    "{% break %}", "{% else %}", "{{ none.x.y }}", "{{ 'x'.split('') }}", "{{ items.index(9) }}",
]

VARIABLES = {
    "name": "weft", "items": [1, 2, 3], "a": {"b": {"c": 5}, "z y": "q"}, "messages": [],
    "people": [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 21}, {"name": "Cy", "age": 0}],
}

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "The \"weather\" of a place", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 0.5}}, "required": ["place"]}}}]

CONVERSATIONS = {
    "short": [{"role": "user", "content": "Hello, who are you?"}, {"role": "assistant", "content": "A loom.\nI weave!"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "naïve café — 東京 🙂"}, {"role": "assistant", "content": " Oui "},
               {"role": "user", "content": "And\n\nthen?"}, {"role": "assistant", "content": "Then <b>that</b> & \"this\"."}],
    "turns": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "2 + 2?"},
              {"role": "assistant", "content": "4"}, {"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "6, I think."}],
    "thought": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nBecause."},
                {"role": "user", "content": "Really?"}, {"role": "assistant", "content": "<think>\nOh.\n</think>\n\nYes."}],
    "tools": [{"role": "user", "content": "Is it raining in Gent?"},
              {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"place": "Gent", "days": 1}}}]},
              {"role": "tool", "content": "{\"rain\": true}"}, {"role": "assistant", "content": "Yes."}],
}


def render(template, variables):
    compiled = chat_template_utils._compile_jinja_template(template)
    return compiled.render(**variables)


def jinja_cases():
    cases = []
    for template in TEMPLATES + LINES:
        cases.append({"template": template, "text": render(template, VARIABLES)})
    for template in REFUSED:
        try:
            text = render(template, VARIABLES)
        except Exception:
            cases.append({"template": template, "error": True})
        else:
            raise SystemExit(f"not refused: {template}: {text}")
    return {"variables": {name: json.dumps(value) for name, value in VARIABLES.items()}, "cases": cases}


def train(spelling):
    """A small BPE: over bytes, or over characters as Llama 2 has it, with a space put before each piece of text."""
    bytes_ = spelling == "bytes"
    special = [AddedToken(t, normalized=False, special=True) for t in SPECIAL + ([] if bytes_ else ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"])]
    tokenizer = Tokenizer(models.BPE() if bytes_ else models.BPE(unk_token="<unk>", fuse_unk=True))
    texts = [m["content"] for c in CONVERSATIONS.values() for m in c] * 2 + [str(pathlib.Path(__file__).read_text())]
    if bytes_:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        alphabet = []
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    path = FOLDER / f"{spelling}.json"
    tokenizer.save(str(path))
    path.write_text(json.dumps(json.loads(path.read_text()), ensure_ascii=False, separators=(",", ":")) + "\n")
    begin, end = ("<|endoftext|>", "<|endoftext|>") if bytes_ else ("<s>", "</s>")
    return PreTrainedTokenizerFast(tokenizer_file=str(path), bos_token=begin, eos_token=end)


def chat_cases():
    cases = []
    for spelling in ("bytes", "characters"):
        tokenizer = train(spelling)
        for path in sorted(FOLDER.glob("*.jinja")):
            template = path.read_text()
            marked = "{% generation %}" in template
            for name, messages in CONVERSATIONS.items():
                for tools in (None, TOOLS):
                    case = {"template": path.stem, "tokenizer": spelling, "messages": json.dumps(messages, ensure_ascii=False),
                            "tools": json.dumps(tools) if tools else ""}
                    if tools and (name not in ("tools", "system") or path.stem not in ("headers", "thinking")):
                        continue
                    # The day of the fixture: a variable goes before the function.
                    options = {"tools": tools, "chat_template": template, "date_string": "01 Jan 2025"}
                    try:
                        case["prompt"] = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
                    except TemplateError as error:
                        cases.append(case | {"error": str(error)})
                        continue
                    whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=marked, **options)
                    cases.append(case | {"ids": whole["input_ids"], "said": whole["assistant_masks"] if marked else None})
    return cases


def write(name, value):
    (FOLDER / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    write("jinja.json", jinja_cases())
    write("chats.json", chat_cases())
