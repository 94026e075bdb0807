"""Chat templates are programs of others: they end, and take little memory, whatever they do."""

import resource
from types import SimpleNamespace
from typing import Any

import pytest

from specchat.engine import EngineError
from specchat.engine.sequence import template
from specchat.engine.sequence.template import render

LOOP = "{% for i in range(99999) %}"
ENDLESS = {
    "nested loops": LOOP * 3 + "{% endfor %}" * 3,
    "nested loops over messages": "{% for a in messages %}" * 18 + "x" + "{% endfor %}" * 18,
    "a macro": "{% macro f(n) %}{{ f(n - 1) + f(n - 1) if n else '' }}{% endmacro %}{{ f(60) }}",
    "lists of lists": "{% set ns = namespace(l=[0]) %}" + LOOP + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "a power": "{{ 10 ** (10 ** 10) }}",
}
LARGE = {
    "center": "{{ 'a'|center(9999999999) }}",
    "ljust": "{{ 'a'.ljust(9999999999) }}",
    "a product": "{{ 'a' * 9999999999 }}",
    "a format": "{{ '%9999999999d' % 1 }}",
    "another format": "{{ '{:>9999999999}'.format(1) }}",
    "doubling": "{% set ns = namespace(s='a') %}" + LOOP + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "doubling by name": "{% set s = 'abcdefgh' %}" + "{% set s = s + s %}" * 40 + "{{ s }}",
    "lists": "{% set ns = namespace(l=[1]) %}" + LOOP + "{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l }}",
    "joined": "{{ (['a' * 100000] * 100000)|join }}",
    "indent": "{{ ('a\n' * 100000)|indent(9999999) }}",
    "replaced": "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "words": "{{ lipsum(n=99999999) }}",
    "a block": "{% set s %}{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}{{ s }}",
}


def rendered(text: str) -> str:
    tokenizer: Any = SimpleNamespace(chat_template=text, special_tokens_map={"eos_token": "</s>"})
    return render(tokenizer, [{"role": "user", "content": "Hi"}] * 3)


@pytest.mark.parametrize("name", ["center", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_memory(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EngineError, match=r"takes too much time or memory"):
        rendered(LARGE[name])
    with pytest.raises(EngineError, match=r"takes too much time or memory"):
        rendered(LARGE[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert rendered("{{ '%s' % messages[0].content }}") == "Hi"


@pytest.mark.parametrize("name", ENDLESS)
def test_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MOST_S", 0.2)
    with pytest.raises(EngineError, match=r"takes too much time or memory"):
        rendered(ENDLESS[name])


def test_what_is_no_template_is_named() -> None:
    for text in ("{% for %}", "{{ 1/0 }}", "{" + "{(" * 9000, "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"):
        with pytest.raises(Exception, match=r"\w"):
            rendered(text)


def test_both_ways_render_the_same() -> None:
    text = "{% for m in messages %}<{{ m['role'] }}>{{ m.content|trim + eos_token }}\n{% endfor %}{{ '\x1b\u2028ü🦊' }}"
    expected = "<user>Hi</s>\n" * 3 + "\x1b\u2028ü🦊"
    assert rendered(text) == rendered(text + "{{ ''|indent }}") == expected, (
        "a simple template, and one for the process"
    )
