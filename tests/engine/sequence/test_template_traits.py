"""What chat templates accept: templates in the forms in which models are published."""

from typing import Any

import pytest

from specchat.engine.request import Message, Request
from specchat.engine.sequence.prompt import encode
from specchat.engine.sequence.template_traits import ignores_messages, thinking_values, thinking_variables, traits_of
from tests.engine.sequence.templates import with_template
from tests.engine.tiny import TEMPLATE, tiny_tokenizer

EFFORT = "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
CHECKED = (
    "{% if not reasoning_effort is defined %}{% set reasoning_effort = 'high' %}"
    "{% elif reasoning_effort not in ['high', 'no_think'] %}{{ raise_exception('no such effort') }}{% endif %}"
)
SWITCHES = {
    "a flag": (TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}<off>{% endif %}", "off on"),
    "a flag with a default": ("{% set thinking = thinking | default(true) %}" + TEMPLATE + "{{ thinking }}", "off on"),
    "not a flag": ("{% set ns = namespace(enable_thinking=true) %}" + TEMPLATE + "{{ ns.enable_thinking }}", ""),
    "a variable that it sets": ("{% set enable_thinking = true %}" + TEMPLATE + "{{ enable_thinking }}", ""),
    "only a name in its text": ("{{ 'enable_thinking' }}{# reasoning_effort #}" + TEMPLATE, ""),
    "a flag that may not be off": (
        "{% if enable_thinking is defined and not enable_thinking %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE,
        "",
    ),
    "any word": (EFFORT + "Reasoning: {{ reasoning_effort }}" + TEMPLATE, "low medium high"),
    "words that it checks": (CHECKED + TEMPLATE + "{{ reasoning_effort }}", "no_think high"),
    "one word and a rest": (
        "{{ 'high' if reasoning_effort is defined and reasoning_effort == 'high' else 'max' }}" + TEMPLATE, "high max"
    ),
    "any word of a longer scale": ("Strength {{ reasoning_strength }}" + TEMPLATE, "low medium high xhigh"),
    "modes": (
        "{% if thinking_mode == 'enabled' %}think{% elif thinking_mode == 'disabled' %}direct{% elif thinking_mode =="
        " 'adaptive' %}either{% endif %}" + TEMPLATE, "disabled adaptive enabled"
    ),
    "a flag and words": (
        "{% if thinking is undefined %}{% set thinking = true %}{% endif %}"
        "{% if thinking and thinking_effort is defined %}{% if thinking_effort not in ['low', 'max'] %}"
        "{{ raise_exception('no') }}{% endif %}{{ thinking_effort }}{% endif %}{{ thinking }}" + TEMPLATE,
        "off on low max",
    ),
    "a flag by another name": (
        "{% set reasoning = reasoning if reasoning is not undefined else reasoning_effort != 'none' %}" + TEMPLATE
        + "{{ '<T>' if reasoning else '<T></T>' }}", "off on"
    ),
    "a budget": (
        "{% if thinking_budget is defined %}{{ 'none' if thinking_budget == 0 else thinking_budget }}{% endif %}"
        + TEMPLATE, "off 512 1024 2048 4096 8192 16384"
    ),
    "the default of several templates": (
        {"default": TEMPLATE + "{{ enable_thinking }}", "tool_use": TEMPLATE}, "off on"
    ),
    "nothing": (TEMPLATE, ""),
}  # fmt: skip


@pytest.mark.parametrize(("template", "values"), SWITCHES.values(), ids=SWITCHES)
def test_values_of_a_thinking_switch_are_the_ones_that_change_the_prompt(template: Any, values: str) -> None:
    tokenizer = with_template(template)
    assert list(thinking_values(tokenizer)) == values.split()
    asked = [Request("r", (Message("user", "hi"),), thinking=thinking) for thinking in (None, *_requested(values))]
    prompts = {tuple(encode(request, tokenizer)) for request in asked}
    assert len(prompts) >= len(values.split())


def _requested(values: str) -> list[bool | str]:
    return [{"on": True, "off": False}.get(value, value) for value in values.split()]


def test_on_and_off_are_words_where_the_template_has_no_flag() -> None:
    modes, checked = (with_template(SWITCHES[name][0]) for name in ("modes", "words that it checks"))
    assert thinking_variables(modes, False) == {"thinking_mode": "disabled"}
    assert thinking_variables(modes, True) == {"thinking_mode": "enabled"}
    assert thinking_variables(checked, False) == thinking_variables(checked, "none") == {"reasoning_effort": "no_think"}
    assert thinking_variables(checked, "low") == thinking_variables(tiny_tokenizer(), True) == {}


def test_kind_of_content_and_system_prompts() -> None:
    loop = "{% for m in messages %}{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    assert traits_of(with_template(loop + "{% endif %}{% endfor %}{% endfor %}"))[:2] == (True, True)
    assert traits_of(with_template(TEMPLATE))[:2] == (False, True)
    either = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}"
    assert traits_of(with_template(either + "{% endif %}{% endfor %}"))[:2] == (False, True)
    for reads in (TEMPLATE, loop + "{% endif %}{% endfor %}{% endfor %}", "{{ raise_exception('no system prompt') }}"):
        assert not ignores_messages(with_template(reads))
    assert ignores_messages(with_template('{"model_type": "llama"}'))
    assert not traits_of(
        with_template("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}")
    ).system
