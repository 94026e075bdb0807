"""Thinking: markers, switches and words of chat templates, and replies of models that think."""

from typing import Any

import pytest
from tokenizers import AddedToken

from specchat.engine import Admitted, Finished, Message, Request, Thinking, from_json, to_json
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import encode
from specchat.engine.sequence.template_traits import thinking_values
from specchat.engine.sequence.thinking import find_markers, words_of
from tests.engine.tiny import TEMPLATE, ask, tiny_engine, tiny_model, tiny_tokenizer

QWEN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}[assistant]"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}"
)
DEEPSEEK = TEMPLATE + "<think>\n"
DEEPSEEK_V3 = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}" + TEMPLATE + "{{ '</think>' }}"
SMOLLM = "{% if '/no_think' in messages[0].content %}quick{% elif \"/think\" in x %}{% endif %}" + TEMPLATE
OPENING, CLOSING = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.thinking is defined %}"
    "{{ '<|channel|>analysis<|message|>' + m.thinking }}{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{# message.thinking #}<|start|>assistant"
)


def tokenizer_of(template: str | None, special: tuple[str, ...] = (), added: tuple[str, ...] = ()) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.add_tokens([AddedToken(token, special=False) for token in added])
    return tokenizer


@pytest.mark.parametrize(
    ("template", "markers", "switch"),
    [
        (TEMPLATE, None, None),
        (None, None, None),
        (QWEN, ("<think>", "</think>"), "enable_thinking"),
        (DEEPSEEK, ("<think>", "</think>"), None),
        (HARMONY, (OPENING, CLOSING), None),
        ({"default": QWEN, "tool_use": TEMPLATE}, ("<think>", "</think>"), "enable_thinking"),
    ],
)
def test_markers_and_switch_of_a_template(template: Any, markers: tuple[str, str] | None, switch: str | None) -> None:
    found = find_markers(tokenizer_of(template))
    assert (found and (found.opening, found.closing)) == markers
    assert dict(thinking_values(tokenizer_of(template))) == (
        {"off": {switch: False}, "on": {switch: True}} if switch else {}
    )


def test_the_vocabulary_may_have_markers_that_the_template_does_not_name() -> None:
    found = find_markers(tokenizer_of(TEMPLATE, added=("<think>", "</think>")))
    assert found.special == {}


def test_words_that_a_template_looks_for() -> None:
    assert words_of(SMOLLM) == ("/no_think", "/think")
    assert words_of(QWEN) == ()


def test_the_switch_reaches_the_template_and_the_prompt_may_open_the_block() -> None:
    tokenizer = tokenizer_of(QWEN)
    found = find_markers(tokenizer)
    ends = {}
    for thinking in (None, True, False):
        ids = encode(Request("r", (Message("user", "hi"),), thinking=thinking), tokenizer)
        ends[thinking] = tokenizer.decode(ids).partition("[assistant]")[2], found.of_prompt(ids, tokenizer).begun
    assert ends == {None: ("", False), True: ("", False), False: ("<think>\n\n</think>\n\n", False)}
    opened = tokenizer_of(DEEPSEEK)
    assert found.of_prompt(encode(Request("r", (Message("user", "hi"),), thinking=False), opened), opened).begun


MINISTRAL = (
    "{% for m in messages %}[{{ m.role }}]{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for block in m['content'] %}{% if block['type'] == 'text' %}{{ block['text'] }}"
    "{% elif block['type'] == 'thinking' %}{{ '[THINK]' + block['thinking'] + '[/THINK]' }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)
APERTUS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for block in m.content.blocks %}{% if block.type == 'thoughts' %}{{ '<|inner_prefix|>' + block.text }}"
    "{% elif block.type == 'response' %}{{ '<|inner_suffix|>' + block.text }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)
SEED = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content is defined %}"
    "{{ '<seed:think>' + m.reasoning_content + '</seed:think>' }}{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (QWEN, "[user]hi[assistant]yes[user]so[assistant]"),
        (SEED, "[user]hi[assistant]<seed:think>hm</seed:think>yes[user]so"),
        (HARMONY, f"<|start|>assistant{OPENING}hm<|message|>yes<|end|>"),
        (MINISTRAL, "[user]hi[assistant][THINK]hm[/THINK]yes[user]so"),
        (APERTUS, "[user]hi[assistant]<|inner_prefix|>hm<|inner_suffix|>yes[user]so"),
    ],
)
def test_each_template_gets_earlier_thinking_where_it_reads_it(template: str, prompt: str) -> None:
    turns = (Message("user", "hi"), Message("assistant", "yes", "hm"), Message("user", "so"))
    tokenizer = tokenizer_of(template)
    assert prompt in tokenizer.decode(encode(Request("r", turns), tokenizer))


def test_markers_that_are_special_tokens_are_part_of_the_text_and_other_special_tokens_are_not() -> None:
    tokenizer = tokenizer_of(TEMPLATE, ("[THINK]", "[/THINK]", "[TOOL]"))
    markers = find_markers(tokenizer)
    assert sorted(markers.special.values()) == ["[/THINK]", "[THINK]"]
    reply = Detokenizer(tokenizer, (), markers.special)
    pieces = [reply.add(token) for token in tokenizer.encode("[THINK]é[TOOL][/THINK]ü")]
    assert "".join(pieces) + reply.tail() == "[THINK]é[/THINK]ü"


def test_a_reply_says_what_stands_around_its_thinking() -> None:
    for template, expected in ((QWEN, Thinking("<think>", "</think>", False)), (TEMPLATE, None)):
        model = tiny_model()
        model.tokenizer.chat_template = template
        with tiny_engine(model) as engine:
            admitted, *_, finished = list(engine.stream(ask("hi", max_tokens=4, thinking=True)))
            assert isinstance(admitted, Admitted)
            assert admitted.thinking == expected
            assert isinstance(finished, Finished)
            assert from_json(to_json(admitted)) == admitted
            ready = engine.wait_ready()
            assert ready.thinking_switch is (template == QWEN)
            assert from_json(to_json(ready)) == ready
