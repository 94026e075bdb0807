"""Formats of calls: templates as published, shortened, and replies as the models write them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken

from specchat.engine import Call, Message, MessagePart, PartKind, Request, Tool
from specchat.engine.sequence.call_formats import find_call_format
from specchat.engine.sequence.detokenizer import Detokenizer
from specchat.engine.sequence.prompt import encode
from tests.engine.tiny import tiny_tokenizer

MARK = re.compile(r'(?!</?(?:atem:)?(?:param|function|invoke))<\|?"?[\w:|/▁]+\|?"?\|?>|\[/?[A-Z_]+\]|<｜[\w▁]+｜>')
"""Marks that are tokens in the vocabularies of these models."""


WEATHER = Tool(
    "get_weather",
    "Tells the weather.",
    json.dumps({
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "object"}},
        "required": ["city"],
    }),
)  # fmt: skip


CLOCK = Tool("clock")


TOOLS = (WEATHER, CLOCK)


PARIS = {"city": "Paris"}


JSON = json.dumps(PARIS)


CALLED = (
    Message("user", "hi"),
    Message("assistant", parts=[MessagePart(PartKind.CALL, JSON, "get_weather", "abcdefgh1")]),
    Message("tool", parts=[MessagePart(PartKind.RESULT, "18 °C", "get_weather", "abcdefgh1")]),
)


@dataclass(frozen=True)
class Case:
    """A model's format."""

    call: str
    """How its template writes the call `c` of an earlier reply."""
    reply: str
    """How it calls `get_weather` with `PARIS`, and then, if it can, `clock`."""
    result: str = "<tool_response>{{ m.content }}</tool_response>"
    """How its template writes a result."""
    second: bool = True
    start: str = ""
    """How a prompt ends."""
    tools: str = "{{ tools | tojson }}"

    @property
    def template(self) -> str:
        """The chat template."""
        calls = f"{{% for t in m.tool_calls %}}{{% set c = t.function %}}{self.call}{{% endfor %}}"
        return (
            f"{{% if tools %}}{self.tools}{{% endif %}}{{% for m in messages %}}[{{{{ m.role }}}}]"
            f"{{% if m.role == 'tool' %}}{self.result}{{% else %}}{{{{ m.content }}}}"
            f"{{% if m.tool_calls %}}{calls}{{% endif %}}{{% endif %}}{{% endfor %}}[assistant]{{{{ {self.start!r} }}}}"
        )


XML = (
    "<tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments | items %}<parameter={{ k }}>\n{{ v }}\n"
    "</parameter>\n{% endfor %}</function>\n</tool_call>"
)


GEMMA = (
    "<|tool_call>call:{{ c.name }}{{ '{' }}{% for k, v in c.arguments | dictsort %}{{ k }}:{% if v is string %}<|\"|>"
    "{{ v }}<|\"|>{% else %}{{ v }}{% endif %}{{ '' if loop.last else ',' }}{% endfor %}{{ '}' }}<tool_call|>"
)


PYTHON = (
    "<|tool_call_start|>[{{ c.name }}({% for k, v in c.arguments | items %}{{ k }}={% if v is string %}'{{ v }}'"
    "{% else %}{{ v }}{% endif %}{{ '' if loop.last else ', ' }}{% endfor %})]<|tool_call_end|>"
)


HEADER = "<|start|>assistant to=functions.{{ c.name }}<|channel|>commentary json<|message|>"


CASES = {
    "Hermes, Qwen3": Case(
        '<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n</tool_call>',
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>\n<tool_call>\n{{"name": "clock", '
        '"arguments": {}}\n</tool_call>',
    ),
    "Qwen3, which thinks": Case(
        '{# <think> #}<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n</tool_call>',
        f'<think>\nHm.\n</think>\n\n<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>',
        second=False,
    ),
    "Qwen3.5, Qwen3 Coder": Case(
        XML, "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    ),
    "Llama 3": Case(
        '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}<|eot_id|>',
        f'<|python_tag|>{{"name": "get_weather", "parameters": {JSON}}}; {{"name": "clock", "parameters": {{}}}}',
    ),
    "Mistral Nemo": Case(
        '[TOOL_CALLS][{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}, "id": "{{ t.id }}"}]</s>',
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {JSON}}}, {{"name": "clock", "arguments": {{}}}}]',
        "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]",
    ),
    "Ministral 3": Case(
        "[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}</s>",
        f"[TOOL_CALLS]get_weather[ARGS]{JSON}[TOOL_CALLS]clock[ARGS]{{}}",
        "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]",
    ),
    "Gemma 4": Case(
        "{# <|channel> <channel|> #}" + GEMMA,
        '<|channel>thought\nHm.\n<channel|><|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
        "<|tool_call>call:clock{}<tool_call|>",
    ),
    "gpt-oss": Case(
        "{# <|channel|> #}" + HEADER + "{{ c.arguments | tojson }}<|call|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        f"<|constrain|>json<|message|>{JSON}<|call|>",
        "<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>",
        second=False, start="<|start|>assistant",
    ),
    "Muse": Case(
        '<|start|>assistant to={{ c.name }}<|message|><atem:function_calls>\n<atem:invoke name="{{ c.name }}">\n'
        '{% for k, v in c.arguments | items %}<atem:parameter name="{{ k }}">{{ v }}</atem:parameter>\n{% endfor %}'
        "</atem:invoke>\n</atem:function_calls><|eot|>",
        ' to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke '
        'name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n</atem:invoke>\n'
        '</atem:function_calls><|eom|><|start|>assistant to=clock<|message|><atem:function_calls>\n<atem:invoke '
        'name="clock">\n</atem:invoke>\n</atem:function_calls><|eot|>',
        '<|start|>tool {{ m.name }}<|message|><tool_output name="{{ m.name }}">\n{{ m.content }}\n</tool_output>',
        start="<|start|>assistant",
    ),
    "LFM2.5": Case(
        PYTHON, "<|tool_call_start|>[get_weather(city='Paris'), clock()]<|tool_call_end|>",
    ),
    "Granite 4": Case(
        '<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n</tool_call>',
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>', second=False,
    ),
    "Granite 3, which writes no earlier calls": Case(
        "", f'<|tool_call|>[{{"name": "get_weather", "arguments": {JSON}}}, {{"name": "clock", "arguments": {{}}}}]',
        tools="{{ tools | tojson }}{# <|tool_call|> #}",
    ),
    "GLM": Case(
        "<tool_call>{{ c.name }}{% for k, v in c.arguments | items %}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}"
        "</arg_value>{% endfor %}</tool_call>",
        "<think>Hm.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"
        "<tool_call>clock\n</tool_call>",
        tools="{{ tools | tojson }}{# <think> #}",
    ),
    "DeepSeek V3.1": Case(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>{{ c.arguments + '' }}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "Kimi K2": Case(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ c.name }}:0<|tool_call_argument_begin|>"
        "{{ c.arguments | tojson }}<|tool_call_end|><|tool_calls_section_end|>",
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{JSON}"
        "<|tool_call_end|><|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
    ),
    "MiniMax M2": Case(
        '<minimax:tool_call>\n<invoke name="{{ c.name }}">{% for k, v in c.arguments | items %}'
        '<parameter name="{{ k }}">{{ v }}</parameter>'
        "{% endfor %}</invoke>\n</minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>\n'
        '<invoke name="clock">\n</invoke>\n</minimax:tool_call>',
    ),
    "Hunyuan, Apriel": Case(
        '<tool_calls>[{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}]</tool_calls><|eos|>',
        f'<tool_calls>[{{"name": "get_weather", "arguments": {JSON}}}, {{"name": "clock", "arguments": {{}}}}]'
        "</tool_calls>\n",
    ),
    "Qwen3 Coder, which leaves out the mark": Case(
        XML, "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    ),
    "Qwen3.5, which calls instead of ending the thinking": Case(
        "{# </think> #}" + XML,
        "Hm.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=clock>\n</function>\n</tool_call>", start="<think>\n",
    ),
    "DeepSeek V3.2": Case(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{{ c.name }}">\n{% for k, v in c.arguments | items %}'
        '<｜DSML｜parameter name="{{ k }}" string="{{ (v is string) | tojson }}">{{ v }}</｜DSML｜parameter>\n'
        "{% endfor %}</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">'
        'Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="clock">\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
    ),
    "Functionary": Case(
        "<function={{ c.name }}>{{ c.arguments | tojson }}</function><|eom_id|>",
        f"<function=get_weather>{JSON}</function><function=clock>{{}}</function>",
    ),
    "MiniCPM 5": Case(
        '<function name="{{ c.name }}">{% for k, v in c.arguments | items %}<param name="{{ k }}">{{ v }}</param>'
        "{% endfor %}</function>",
        '<function name="get_weather"><param name="city"><![CDATA[Paris]]></param></function>\n<function name="clock">'
        "</function>",
    ),
    "Phi-4 mini, FireFunction": Case(
        'functools[{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}]<|end|>',
        f'functools[\n  {{"name": "get_weather", "arguments": {JSON}}},\n  {{"name": "clock", "arguments": {{}}}}\n]',
    ),
    "Llama 4, whose template writes values as text": Case(
        "[{{ c.name }}({% for k, v in c.arguments | items %}{{ k }}=\"{{ v }}\"{{ '' if "
        "loop.last else ', ' }}{% endfor %}"
        ")]<|eot|>", "<|python_start|>[get_weather(city='Paris'), clock()]<|python_end|>",
    ),
    "Apertus": Case(
        '<|tools_prefix|>[{"{{ c.name }}": {{ c.arguments | tojson }}}]<|tools_suffix|>',
        f'<|tools_prefix|>[{{"get_weather": {JSON}}}, {{"clock": {{}}}}]<|tools_suffix|>',
    ),
    "Solar Open": Case(
        "{# <|think|><|content|> #}<|tool_calls|><|tool_call:begin|>{{ t.id }}<|tool_call:name|>{{ c.name }}"
        "<|tool_call:args|>{{ c.arguments | tojson }}<|tool_call:end|><|calls|>",
        f"<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>abcdefgh1<|tool_call:name|>get_weather"
        f"<|tool_call:args|>{JSON}<|tool_call:end|><|tool_call:begin|>abcdefgh2<|tool_call:name|>clock<|tool_call:args|>{{}}"
        "<|tool_call:end|><|calls|>",
    ),
    "Command A Reasoning": Case(
        '{# <|START_THINKING|><|END_THINKING|> #}<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{{ c.name }}", '
        '"parameters": {{ c.arguments | tojson }}}]<|END_ACTION|>',
        '<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", '
        f'"parameters": {JSON}}}, {{"tool_call_id": "1", "tool_name": "clock", "parameters": {{}}}}]<|END_ACTION|>',
    ),
}  # fmt: skip


def tokenizer_of(case: Case, *, special: bool | None) -> Any:
    """A tokenizer of bytes and of the case's marks, which are text if `special` is None."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = case.template
    marks = sorted(set(MARK.findall(case.reply + case.start + case.call))) if special is not None else []
    tokenizer.add_tokens([AddedToken(mark, special=special is True, normalized=False) for mark in [*marks, "<~>"]])
    return tokenizer


def streamed(
    tokenizer: Any, text: str | Sequence[int], *, several: bool = True, tools: tuple[Tool, ...] = TOOLS
) -> tuple[str, str, list[Call]]:
    """Thinking, answer and calls of a reply."""
    form = find_call_format(tokenizer)
    assert form is not None
    prompt = encode(Request("r", CALLED[:1], tools=TOOLS), tokenizer)
    reply = Detokenizer(tokenizer, (), form.parser(prompt, tokenizer, tools, several=several), form.special)
    said, calls = {True: "", False: ""}, []
    for token in tokenizer.encode(text) if isinstance(text, str) else text:
        piece = reply.add(token)
        said[reply.thinking] += piece
        calls += reply.take_calls()[0]
    tail = reply.tail()
    said[reply.thinking] += tail
    return said[True].strip(), said[False], [*calls, *reply.take_calls()[0]]


def named(calls: Sequence[Call]) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in calls]
