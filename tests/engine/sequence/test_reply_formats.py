"""Formats of thinking: the stream of each is separated, and its template gets the parts of earlier replies.

Each case has a template of the form that the model's authors published, shortened, and a reply as the model writes it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from specchat.engine import Message, Request
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import encode
from specchat.engine.sequence.reply_formats import FORMATS, find_format
from specchat.engine.sequence.reply_parser import ReplyParser, TagParser, Tags
from tests.engine.tiny import TEMPLATE, tiny_tokenizer

MARK = re.compile(r"<\|?[\w:|/]+\|?>|\[/?[A-Z]+\]|\[unused\d+\]")
"""Marks that are tokens in the vocabularies of these models."""
SAID = ("Hm, hm.", "Yes: <b>, 1 < 2 and </b>.")
"""Thinking and answer of every reply."""
TURNS = (Message("user", "hi"), Message("assistant", "yes", "hm"), Message("user", "so"))


@dataclass(frozen=True)
class Case:
    """A model's format."""

    reply: str
    """What it writes; ~ and ^ stand for `SAID`."""
    start: str = ""
    """How a prompt ends."""
    history: str = "{{ m.content }}"
    """How its template writes an earlier reply."""
    kept: str = "yes"
    """How the reply of `TURNS` is in the next prompt."""
    words: bool = False
    """Whether its marks are words that are no tokens."""

    @property
    def text(self) -> str:
        """The reply."""
        return self.reply.replace("~", SAID[0]).replace("^", SAID[1])

    @property
    def template(self) -> str:
        """The chat template."""
        about = f"{{# {MARK.sub(lambda mark: mark[0] + ' ', self.reply)} #}}"
        turn = f"{{% if m.role == 'assistant' %}}{self.history}{{% else %}}{{{{ m.content }}}}{{% endif %}}"
        return (
            f"{about}{{% for m in messages %}}[{{{{ m.role }}}}]{turn}{{% endfor %}}[assistant]{{{{ {self.start!r} }}}}"
        )


def kept_in(before: str, after: str, name: str = "reasoning_content") -> str:
    """A template that keeps the thinking of earlier replies, from a field of the message."""
    return f"{{% if m.{name} %}}{before}{{{{ m.{name} }}}}{after}{{% endif %}}{{{{ m.content }}}}"


LAST_ONLY = "{% if loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
EMPTY = "<think></think>{{ m.content }}"
SPLIT = "{{ m.content.split('</think>')[-1].lstrip() }}"
THINK, OPENED = "<think>\n~\n</think>\n\n^", "~\n</think>\n\n^"
CHANNEL = "<|channel|>analysis<|message|>~<|end|><|start|>assistant<|channel|>final<|message|>^"
COMMAND = "<|START_THINKING|>~<|END_THINKING|><|START_RESPONSE|>^<|END_RESPONSE|>"
K3 = "<|close|>think<|sep|><|open|>response<|sep|>^<|close|>response<|sep|><|close|>message<|sep|>"
PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for b in m.content %}{% if b['type'] == 'text' %}"
    "{{ b['text'] }}{% elif b['type'] == 'thinking' %}[THINK]{{ b['thinking'] }}[/THINK]{% endif %}{% endfor %}"
    "{% endif %}"
)
BLOCKS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for b in m.content.blocks %}{% if b.type == 'thoughts' %}"
    "<|inner_prefix|>{{ b.text }}<|inner_suffix|>{% elif b.type == 'response' %}{{ b.text }}{% endif %}{% endfor %}"
    "{% endif %}"
)
CASES = {
    "Qwen3": Case(THINK, history=LAST_ONLY),  # MiMo, MiniCPM 5
    "Qwen3 without thinking": Case("^", "<think>\n\n</think>\n\n", LAST_ONLY),
    "Qwen3 2507": Case(OPENED, "<think>\n", LAST_ONLY),  # Qwen3.5, MiniMax M2, Step 3
    "QwQ": Case(OPENED, "<think>\n", SPLIT),  # DeepSeek R1, MiniMax M1, Nemotron Nano v2, ERNIE 4.5
    "DeepSeek R1, which repeats the mark": Case(THINK, "<think>\n", SPLIT),
    "DeepSeek R1 of the first weeks": Case(THINK, history=SPLIT),  # Nemotron Super v1.5, Ling and Ring
    "DeepSeek V3.1": Case("~</think>^", "<think>", SPLIT),
    "DeepSeek V3.1 without thinking": Case("^", "</think>", SPLIT),
    "DeepSeek V3.2": Case("~</think>^", "<think>", "</think>{{ m.content }}", "</think>yes"),  # GLM 4.7
    "DeepSeek V4": Case("~</think>^", "<think>", kept_in("<think>", "</think>"), "<think>hm</think>yes"),
    "GLM 4.5": Case("\n<think>~</think>\n^", history="<think></think>\n{{ m.content }}", kept="<think></think>\nyes"),
    "GLM 4.6": Case("\n<think>~</think>^", history="</think>\n{{ m.content }}", kept="</think>\nyes"),
    "Kimi K2 Thinking": Case("~</think>^", "<think>", EMPTY, "<think></think>yes"),  # Laguna
    "Kimi K3": Case(f"~{K3}", "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>",
                    kept_in("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
                    "<|open|>think<|sep|>hm<|close|>think<|sep|>yes"),
    "MiniMax M3": Case("<mm:think>~</mm:think>^", history=kept_in("<mm:think>", "</mm:think>"),
                       kept="<mm:think>hm</mm:think>yes"),
    "MiniMax M3 without thinking": Case("</mm:think>^", history="{{ m.content }}{# <mm:think> #}"),
    "Nemotron 3": Case("~</think>^", "<think>\n", EMPTY, "<think></think>yes"),
    "SmolLM3": Case(THINK),  # Phi-4 mini reasoning
    "Phi-4 reasoning": Case("<think>~</think>\n\n^"),
    "LFM2.5": Case("<think>~</think>^", history="{{ m.content.split('</think>')[-1] }}"),
    "EXAONE Deep": Case("~\n</thought>\n\n^", "<thought>\n", "{{ m.content.split('</thought>')[-1] }}"),
    "EXAONE 4": Case(OPENED, "<think>\n", "<think>\n\n</think>\n\n{{ m.content }}", "<think>\n\n</think>\n\nyes"),
    "Granite 3.3": Case("<think>~</think><response>^</response>"),
    "Granite 3.3, elsewhere broken": Case("<think>\n~\n</think>\n\n<response>\n^\n</response>\n"),
    "Granite 3.2": Case("Here is my thought process:\n\n~\n\nHere is my response:\n\n^", words=True),
    "Granite 3.2, in short": Case("Here's my thought process: ~ Here's my response: ^",
                                  history="{# Here is my response: #}{{ m.content }}", words=True),
    "Hunyuan A13B": Case("<think>\n~\n</think>\n<answer>\n^\n</answer>", words=True),
    "Hunyuan without thinking": Case("<answer>\n^\n</answer>", "<think>\n\n</think>\n", words=True),
    "Hy3": Case("~</think:opensource>^", "<think:opensource>", "<think:opensource></think:opensource>{{ m.content }}",
                "<think:opensource></think:opensource>yes"),
    "Intern-S1": Case("<think>~</think>\n\n^", history=LAST_ONLY),
    "LongCat": Case("~</longcat_think>\n^", "<longcat_think>\n", kept_in("<longcat_think>", "</longcat_think>"),
                    "<longcat_think>hm</longcat_think>yes"),
    "K2 Horizon": Case("~</ifm|think>^", "<ifm|think_fast>\n", kept_in("<ifm|think>", "</ifm|think>"),
                       "<ifm|think>hm</ifm|think>yes"),
    "Seed-OSS": Case("<seed:think>~</seed:think>^", history=kept_in("<seed:think>", "</seed:think>"),
                     kept="<seed:think>hm</seed:think>yes"),
    "Seed-OSS without budget": Case("~</seed:think>^", "<seed:think><seed:cot_budget_reflect>"),
    "Magistral": Case("[THINK]~[/THINK]^", history=PARTS, kept="[THINK]hm[/THINK]yes"),
    "Ministral 3": Case("[THINK]~[/THINK]\n\n^", history=PARTS, kept="[THINK]hm[/THINK]yes"),
    "Apertus": Case("<|inner_prefix|>~<|inner_suffix|>^", history=BLOCKS, kept="<|inner_prefix|>hm<|inner_suffix|>yes"),
    "Command A Reasoning": Case(COMMAND, history="<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>",
                                kept="<|START_RESPONSE|>yes<|END_RESPONSE|>"),
    "Command R7B": Case("<|START_RESPONSE|>^<|END_RESPONSE|>",
                        history="{# <|START_THINKING|><|END_THINKING|> #}{{ m.content }}"),
    "Cohere 2 MoE": Case("~<|END_THINKING|><|START_TEXT|>^<|END_TEXT|>", "<|START_THINKING|>",
                         kept_in("<|START_THINKING|>", "<|END_THINKING|>", "tool_plan"),
                         "<|START_THINKING|>hm<|END_THINKING|>yes"),
    "Apriel 1.5": Case("Here are my reasoning steps:\n~\n[BEGIN FINAL RESPONSE]\n^\n[END FINAL RESPONSE]", words=True),
    "Apriel 1.6": Case("~\n[BEGIN FINAL RESPONSE]\n^", "Here are my reasoning steps:\n", words=True),
    "Solar Open": Case("<|think|>~<|end|><|begin|>assistant<|content|>^", "<|begin|>assistant"),
    "Solar Open 2": Case("~<|think:end|>^", "<|think:start|>", kept_in("<|think:start|>", "<|think:end|>"),
                         "<|think:start|>hm<|think:end|>yes"),
    "PLaMo 3": Case("<|plamo:begin_think:plamo|>~<|plamo:end_think:plamo|>^"),
    "openPangu": Case("[unused16]~[unused17]^"),
    "gpt-oss": Case(CHANNEL, "<|start|>assistant", kept_in("<|channel|>analysis<|message|>", "<|end|>", "thinking"),
                    "<|channel|>analysis<|message|>hm<|end|>yes"),
    "gpt-oss, which calls a tool": Case(
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>~<|call|><|start|>assistant"
        "<|channel|>final<|message|>^", "<|start|>assistant"),
    "gpt-oss with a preamble": Case(CHANNEL.replace("final", "commentary"), "<|start|>assistant"),
    "LLM-jp 4": Case(CHANNEL.replace("|>", "|> "), "<|start|> assistant"),
    "Muse": Case(" to=self<|message|>~<|eom|><|start|>assistant to=user<|message|>^", "<|start|>assistant",
                 kept_in(" to=self<|message|>", "<|eom|><|start|>"), " to=self<|message|>hm<|eom|><|start|>yes"),
    "Inkling": Case("<|content_thinking|>~<|end_message|><|message_model|><|content_text|>^<|end_message|>",
                    "<|message_model|>"),
    "Gemma 4": Case("<|channel>thought\n~\n<channel|>^", history="{{ m.content.split('<channel|>')[-1] }}"),
    "Gemma 4 without thinking": Case("^", "<|channel>thought\n<channel|>"),
    "Gemma 4, which ends with an empty thought": Case("<|channel>thought\n~<channel|>^<|channel>thought\n<channel|>"),
    "Reka": Case("<reasoning>~</reasoning>\n\n^"),
    "another tag": Case("<deep_thinking>~</deep_thinking>^", history="{{ m.content }}"),
}  # fmt: skip
KINDS = ("control", "normal", "text")
"""What the marks are: control tokens, which a tokenizer skips; normal tokens; text of several tokens."""


def tokenizer_of(case: Case, kind: str) -> Any:
    """A tokenizer of bytes and of the case's marks."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = case.template
    marks = [] if case.words or kind == "text" else sorted(set(MARK.findall(case.reply + case.start + case.history)))
    tokenizer.add_tokens([AddedToken(mark, special=kind == "control", normalized=False) for mark in marks])
    return tokenizer


def streamed(
    tokenizer: Any, prompt: Sequence[int], reply: Sequence[int], stop: tuple[str, ...] = ()
) -> list[tuple[str, bool]]:
    """The pieces of a reply, and whether each is thinking."""
    form = find_format(tokenizer)
    assert form is not None
    text = Detokenizer(tokenizer, stop, form.parser(prompt, tokenizer), form.special)
    pieces = [(text.add(token), text.thinking) for token in reply]
    return [*pieces, (text.tail(), text.thinking)]


def parts(pieces: Sequence[tuple[str, bool]]) -> tuple[str, str]:
    """Thinking and answer."""
    thought, answer = ("".join(text for text, thinking in pieces if thinking is part) for part in (True, False))
    return thought.strip(), answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_thinking_and_answer_are_separated_in_the_stream(name: str, kind: str) -> None:
    case = CASES[name]
    if kind == "text" and "another" in name:
        return  # tags that no table has are known by the vocabulary alone
    tokenizer = tokenizer_of(case, kind)
    prompt = encode(Request("r", TURNS), tokenizer)
    expected = tuple(said if letter in case.reply else "" for letter, said in zip("~^", SAID, strict=True))
    for stop in ((), ("\n\n\n", "of <b>", "nd of")):
        assert parts(streamed(tokenizer, prompt, tokenizer.encode(case.text), stop)) == expected


@pytest.mark.parametrize("name", CASES)
def test_the_next_prompt_has_what_the_template_makes_of_both_parts(name: str) -> None:
    case = CASES[name]
    tokenizer = tokenizer_of(case, "control")
    assert f"[assistant]{case.kept}[user]so[assistant]{case.start}" in tokenizer.decode(
        encode(Request("r", TURNS), tokenizer)
    )


@pytest.mark.parametrize("kind", ["control", "text"])
@pytest.mark.parametrize(
    "name", ["Qwen3", "Granite 3.3", "Apriel 1.5", "gpt-oss", "Gemma 4", "Kimi K3", "Command A Reasoning"]
)
def test_a_reply_that_is_stopped_anywhere_has_no_marks_and_loses_no_text(name: str, kind: str) -> None:
    case = CASES[name]
    tokenizer = tokenizer_of(case, kind)
    prompt, reply = encode(Request("r", TURNS), tokenizer), tokenizer.encode(case.text)
    whole = streamed(tokenizer, prompt, reply)
    for end in range(len(reply)):
        *said, tail = streamed(tokenizer, prompt, reply[:end])
        assert said == whole[:end]  # what was sent once stays as it is
        thought, answer = parts(said)
        assert SAID[0].startswith(thought)
        assert SAID[1].startswith(answer)
        assert not answer or thought == SAID[0]
        if kind == "control" and not case.words:  # otherwise the beginning of a mark is text, as long as it is the end
            assert SAID[1].startswith(parts([*said, tail])[1])


LATER = "Write <think> and </think>, <|channel|>analysis<|message|>, </response>, [BEGIN FINAL RESPONSE], </answer> x"


@pytest.mark.parametrize("name", CASES)
def test_text_that_looks_like_marks_stays_in_an_answer(name: str) -> None:
    case = CASES[name]
    tokenizer = tokenizer_of(case, "control")
    prompt = encode(Request("r", TURNS), tokenizer)
    before, after = case.reply.replace("~", SAID[0]).split("^")
    spelled = [token for letter in LATER for token in tokenizer.encode(letter)]
    reply = [*tokenizer.encode(before), *spelled, *tokenizer.encode(after)]
    assert parts(streamed(tokenizer, prompt, reply))[1].rstrip() == LATER


@pytest.mark.parametrize("text", ["<thing> is a tag", "The tag <think> is one</think>.", "  <thin", " \n", "<"])
@pytest.mark.parametrize("name", ["Qwen3", "Granite 3.3", "gpt-oss", "Muse", "Solar Open", "Gemma 4", "Apriel 1.5"])
def test_a_reply_without_marks_is_an_answer(name: str, text: str) -> None:
    tokenizer = tokenizer_of(CASES[name], "control")
    prompt = encode(Request("r", TURNS), tokenizer)
    spelled = [token for letter in text for token in tokenizer.encode(letter)]
    assert parts(streamed(tokenizer, prompt, spelled)) == ("", text)


CONTINUED = ("Qwen3", "Seed-OSS", "Kimi K3", "Solar Open 2", "Ministral 3")


@pytest.mark.parametrize("name", CONTINUED)
def test_a_reply_that_continues_a_thought_begins_inside_of_it(name: str) -> None:
    tokenizer = tokenizer_of(CASES[name], "control")
    asked = Message("user", "hi")
    for last, thinking in ((Message("assistant", "", "Hm"), True), (Message("assistant", "Yes", "Hm"), False)):
        prompt = encode(Request("r", (asked, last)), tokenizer)
        ((piece, inside), _) = streamed(tokenizer, prompt, tokenizer.encode("o"))
        assert (piece, inside) == ("o", thinking)


def separated(parser: ReplyParser, pieces: Sequence[str]) -> tuple[str, str]:
    """Thinking and answer of a text in pieces."""
    said = [(parser.feed(piece), parser.thinking) for piece in (*pieces, "")]
    return parts([*said, (parser.end(), parser.thinking)])


TAGS = [marks for marks in FORMATS if isinstance(marks, Tags)] + [Tags(("<a>",), ("</a>",), ("<b>",), ("</b>",))]
SNIPPETS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<a>", "</a>", "<b>", "</b>", "[END FINAL RESPONSE]", "<", "</", "\n", " ", "é", "ok"]
    )
)


@given(st.sampled_from(TAGS), st.booleans(), SNIPPETS, st.lists(st.integers(1, 9), min_size=1))
def test_the_parts_do_not_depend_on_how_the_text_is_cut(
    tags: Tags, begun: bool, said: list[str], sizes: list[int]
) -> None:
    text, pieces = "".join(said), []
    while "".join(pieces) != text:
        at = sum(map(len, pieces))
        pieces.append(text[at : at + sizes[len(pieces) % len(sizes)]])
    assert separated(TagParser(tags, begun=begun), pieces) == separated(TagParser(tags, begun=begun), list(text))


def test_a_stop_string_does_not_reach_over_a_mark() -> None:
    tokenizer = tokenizer_of(CASES["Qwen3"], "control")
    prompt = encode(Request("r", TURNS), tokenizer)
    pieces = streamed(
        tokenizer, prompt, tokenizer.encode("<think>one\n</think>\ntwo three"), stop=("\n\n", "\ntwo", " three")
    )
    assert parts(pieces) == ("one", "two")


@pytest.mark.parametrize(("template", "found"), [(TEMPLATE, False), (None, False), ({"default": "<think>"}, True)])
def test_a_model_thinks_if_its_template_or_vocabulary_says_so(template: Any, found: bool) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    assert (find_format(tokenizer) is not None) is found
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    assert find_format(tokenizer) is not None
