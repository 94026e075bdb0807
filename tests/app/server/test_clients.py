"""Programs of others, unchanged, with the default model and a template with tools: each gets valid calls."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, Field

from tests.app.server.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.model]
TEMPLATE = """{% if tools %}<|im_start|>system
You may call functions: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one as <tool_call>
{"name": NAME, "arguments": ARGUMENTS}
</tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
MODEL = "smollm2-135m"


class City(BaseModel):
    """A city and its country."""

    city: str = Field(max_length=16)
    country: str = Field(max_length=16)


QUESTION = "Paris is the capital of France."


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(TEMPLATE)
    with Served("--chat-template", template) as server:
        yield server


def test_openai(served: Served) -> None:
    openai = pytest.importorskip("openai")
    client, asked = served.openai(), [{"role": "user", "content": QUESTION}]
    tools = [openai.pydantic_function_tool(City)]
    parsed = client.chat.completions.parse(model=MODEL, messages=asked, tools=tools, tool_choice="required")
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, City)
    with client.chat.completions.stream(model=MODEL, messages=asked, tools=tools, tool_choice="required") as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    assert isinstance(call.function.parsed_arguments, City)
    result = {"role": "tool", "tool_call_id": call.id, "content": "yes"}
    told = [*asked, message.model_dump(include={"role", "content", "tool_calls"}), result]
    assert client.chat.completions.create(model=MODEL, messages=told, tools=tools, max_tokens=8).choices
    parsed = client.responses.parse(model=MODEL, input=QUESTION, text_format=City)
    assert isinstance(parsed.output_parsed, City)


def test_pydantic_ai(served: Served) -> None:
    ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{served.url}/v1", api_key="none"))
    assert isinstance(ai.Agent(model, output_type=City).run_sync(QUESTION).output, City)


def test_instructor(served: Served) -> None:
    instructor = pytest.importorskip("instructor")
    client = instructor.from_openai(served.openai(), mode=instructor.Mode.TOOLS)
    asked: Any = [{"role": "user", "content": QUESTION}]
    assert isinstance(client.chat.completions.create(model=MODEL, response_model=City, messages=asked), City)


def test_langchain(served: Served) -> None:
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(base_url=f"{served.url}/v1", api_key="none", model=MODEL)
    for method in ("function_calling", "json_schema"):
        assert isinstance(model.with_structured_output(City, method=method).invoke(QUESTION), City)


def test_litellm(served: Served) -> None:
    litellm = pytest.importorskip("litellm")
    tool = {"type": "function", "function": {"name": "city", "parameters": City.model_json_schema()}}
    answer = litellm.completion(
        model=f"openai/{MODEL}", api_base=f"{served.url}/v1", api_key="none", tools=[tool], tool_choice="required",
        messages=[{"role": "user", "content": QUESTION}],
    )  # fmt: skip
    assert City.model_validate_json(answer.choices[0].message.tool_calls[0].function.arguments)
