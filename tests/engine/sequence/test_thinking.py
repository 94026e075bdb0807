"""Thinking: switches and words of chat templates, earlier thinking in prompts, and replies of models that think."""

from dataclasses import replace

import pytest

from specchat.engine import Admitted, Finished, FinishReason, Message, Request, Round, from_json, to_json
from specchat.engine.sequence.prompt import encode
from specchat.engine.sequence.template_traits import words_of
from tests.engine.sequence.templates import with_template
from tests.engine.tiny import TEMPLATE, ask, reciting_model, tiny_engine, tiny_model

QWEN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}[assistant]"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}"
)
SMOLLM = "{% if '/no_think' in messages[0].content %}quick{% elif \"/think\" in x %}{% endif %}" + TEMPLATE


def test_words_that_a_template_looks_for() -> None:
    assert words_of(SMOLLM) == ("/no_think", "/think")
    assert words_of(QWEN) == ()


MINISTRAL = (
    "{% for m in messages %}[{{ m.role }}]{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for block in m['content'] %}{% if block['type'] == 'text' %}{{ block['text'] }}"
    "{% elif block['type'] == 'thinking' %}{{ '[THINK]' + block['thinking'] + '[/THINK]' }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)
SEED = (
    "{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content is defined %}"
    "{{ '<seed:think>' + m.reasoning_content + '</seed:think>' }}{% endif %}{{ m.content }}{% endfor %}"
)
KEPT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"


STRICT = (
    "{% for m in messages %}{% if not m.content %}{{ raise_exception('empty') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (SEED, "[user]hi[assistant]<seed:think>hm</seed:think>[user]so"),
        (MINISTRAL, "[user]hi[assistant][THINK]hm[/THINK][user]so"),
        (QWEN, "[user]hi[assistant][user]so[assistant]"),
        (STRICT, "[user]hi\n\nso"),
    ],
)
def test_a_reply_that_was_stopped_while_it_thought_breaks_no_prompt(template: str, prompt: str) -> None:
    turns = (Message("user", "hi"), Message("assistant", "", "hm"), Message("user", "so"))
    tokenizer = with_template(template)
    assert tokenizer.decode(encode(Request("r", turns), tokenizer)) == prompt


@pytest.mark.parametrize("begun", [False, True])
def test_an_engine_says_which_tokens_of_a_reply_are_thinking(begun: bool) -> None:
    model = tiny_model()
    model.tokenizer.chat_template = TEMPLATE + ("<think>\n" if begun else "") + "{# <think> #}"
    text = f"{'' if begun else '<think>'}Hm</think>\n\nYes"
    with tiny_engine(model) as engine:
        asked = replace(ask("hi", max_tokens=4), prompt=None, messages=(Message("user", "hi"),), reply_text=text)
        admitted, *rounds, finished = list(engine.stream(asked))
        assert isinstance(admitted, Admitted)
        assert "".join(token.text for token in admitted.given if token.thinking) == "Hm"
        assert "".join(token.text for token in admitted.given if not token.thinking) == "Yes"
        assert not any(record.thinking for record in rounds if isinstance(record, Round))
        stopped = list(engine.stream(replace(asked, request_id="stopped", reply_text=text.split("</")[0])))
        assert all(any(record.thinking) for record in stopped if isinstance(record, Round))
        raw = list(engine.stream(replace(asked, request_id="raw", raw=True)))
        assert "".join(token.text for token in raw[0].given) == text
        assert isinstance(finished, Finished)
        for record in (admitted, *stopped, *raw):
            assert from_json(to_json(record)) == record
        assert not engine.wait_ready().thinking_switch


def test_the_stream_of_a_reply_says_which_tokens_are_thinking_and_its_next_prompt_follows_the_template() -> None:
    tokenizer = with_template(
        "{% for m in messages %}[{{ m.role }}]" + KEPT + "{% endfor %}[reply]", ("<think>", "</think>")
    )
    marked = "<think>Hm.\n</think>\rYes"
    model = reciting_model(tokenizer, tokenizer.encode(f"]{marked}"))
    for drafter in ("none", "suffix"):
        with tiny_engine(model) as engine:
            _, *rounds, finished = list(engine.stream(ask("hi", max_tokens=40, drafter=drafter, stop=("e!",))))
            assert isinstance(finished, Finished)
            assert finished.reason is FinishReason.EOS
            records = [record for record in rounds if isinstance(record, Round)]
            thought, answer = ("".join(getattr(record, part) for record in records) for part in ("thought", "answer"))
            assert (thought, answer + finished.tail) == ("Hm.\n", "Yes")
            assert [flag for record in records for flag in record.thinking or (False,) * len(record.emitted)] == [
                *[True] * len("<Hm.\n<\r"), *[False] * len("Yes."),
            ]  # fmt: skip
            turns = (Message("user", "hi"), Message("assistant", answer, thought.strip()), Message("user", "so"))
            prompt = tokenizer.decode(engine.prompt_ids(Request("p", turns)))
            assert prompt == "[user]hi[assistant]<think>Hm.</think>Yes[user]so[reply]"
