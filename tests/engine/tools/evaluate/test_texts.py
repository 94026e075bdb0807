"""Files of texts: every kind that is known, and what is wrong with the others."""

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from specchat.engine.errors import EngineError
from specchat.engine.models.load import load_tokenizer
from specchat.engine.tools.data_sets import read_entries
from specchat.engine.tools.evaluate.texts import Text, texts_of
from specchat.engine.trace import read_trace
from tests.engine.tiny import rounds_of

TRACE = Path("assets/traces/usual.jsonl").resolve()


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Callable[..., Path]) -> Any:
    return load_tokenizer(tiny_model())


def read(tokenizer: Any, *files: Path) -> tuple[list[Text], list[str]]:
    return texts_of(read_entries(files), tokenizer)


def lines(file: Path, *objects: object) -> Path:
    file.write_text("\n".join(json.dumps(each) for each in objects))
    return file


SHAREGPT = {
    "conversations": [
        {"from": "human", "value": "one"}, {"from": "gpt", "value": "two"}, {"from": "human", "value": "three"},
        {"from": "gpt", "value": "four"},
    ]
}  # fmt: skip
MESSAGES = {
    "category": "colours",
    "messages": [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
    ],
}
QUESTION = {"question_id": [81], "category": "writing", "turns": ["one", "three"]}
ANSWER = {"question_id": [81], "choices": [{"index": 0, "turns": ["two", "four"]}]}


def test_each_reply_of_a_conversation_is_a_text(tokenizer: Any, tmp_path: Path) -> None:
    texts, problems = read(tokenizer, lines(tmp_path / "talks.jsonl", SHAREGPT, MESSAGES))
    assert problems == []
    assert [tokenizer.decode(text.reply) for text in texts] == ["two", "four", "two"]
    assert [text.category for text in texts] == ["talks", "talks", "colours"]
    assert tokenizer.decode(texts[1].prompt).count("<|im_start|>") == 4
    assert "system" in tokenizer.decode(texts[2].prompt)


def test_questions_and_answers_meet_by_their_id_or_stand_together(tokenizer: Any, tmp_path: Path) -> None:
    questions, answers = lines(tmp_path / "q.jsonl", QUESTION), lines(tmp_path / "a.jsonl", ANSWER)
    both = lines(tmp_path / "both.jsonl", QUESTION | ANSWER)
    for files in ((questions, answers), (answers, questions), (both,)):
        texts, problems = read(tokenizer, *files)
        assert problems == []
        assert [(tokenizer.decode(text.reply), text.category) for text in texts] == [
            ("two", "writing"),
            ("four", "writing"),
        ]
    assert read(tokenizer, questions)[1] == ["q.jsonl: no file has its answers"]
    assert read(tokenizer, answers)[1] == ["a.jsonl: no file has its question"]


def test_a_whole_json_list_is_read_entry_by_entry(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps([MESSAGES, 3, MESSAGES]))
    texts, problems = read(tokenizer, tmp_path / "list.json")
    assert len(texts) == 2
    assert problems == ["list.json, entry 2: it is not a JSON object"]


def test_an_exported_chat_gives_the_replies_it_went_on_with(tokenizer: Any, tmp_path: Path) -> None:
    replies = [{"text": "no"}, {"text": "yes"}]
    turns = [{"prompt": "one", "chosen": 1, "replies": replies}, {"prompt": "two", "chosen": None, "replies": []}]
    (tmp_path / "chat.json").write_text(json.dumps({"format": "specchat-chat", "version": 1, "turns": turns}))
    texts, problems = read(tokenizer, tmp_path / "chat.json")
    assert (problems, [tokenizer.decode(text.reply) for text in texts]) == ([], ["yes"])


def test_a_trace_gives_the_very_tokens(tokenizer: Any) -> None:
    texts, problems = read(tokenizer, TRACE)
    rounds = rounds_of(read_trace(TRACE))
    assert problems == []
    assert sum(len(text.reply) for text in texts) == sum(len(record.emitted) for record in rounds)
    first = [token for record in rounds if record.request_id == rounds[0].request_id for token in record.emitted]
    assert texts[0].reply == tuple(first)


def test_a_trace_whose_prompt_the_template_refuses_is_named(tokenizer: Any) -> None:
    refusing = copy(tokenizer)
    refusing.chat_template = "{{ raise_exception('no roles') }}"
    texts, problems = read(refusing, TRACE)
    assert not texts
    assert problems
    assert all("the model's chat template refuses every conversation (no roles)" in each for each in problems)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{not json", "it is not a JSON object"),
        ('"text"', "it is not a JSON object"),
        ("{}", "it has no conversation that is known here"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "it has no reply"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "it has no conversation that is known here"),
        ('{"messages": [{"role": "user", "content": 3}]}', "it has no conversation that is known here"),
        ('{"conversations": {}}', "it has no reply"),
        ('{"question_id": 1, "turns": ["x"], "choices": []}', "it has no conversation that is known here"),
    ],
)
def test_what_is_wrong_is_named_and_the_rest_read(line: str, sentence: str, tokenizer: Any, tmp_path: Path) -> None:
    file = tmp_path / "mixed.jsonl"
    file.write_text(f"{json.dumps(MESSAGES)}\n{line}\n\n{json.dumps(MESSAGES)}\n")
    texts, problems = read(tokenizer, file)
    assert len(texts) == 2
    assert len(problems) == 1
    assert problems[0].startswith(f"mixed.jsonl, line 2: {sentence}")


def test_a_file_that_cannot_be_read_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        read(tokenizer, tmp_path / "none.jsonl")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EngineError, match="is not UTF-8 text"):
        read(tokenizer, tmp_path / "bytes")


def test_a_line_ends_where_the_file_says_so_and_nowhere_within_a_text(tokenizer: Any, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "one\u2028two\x85three"}]
    line = json.dumps({"messages": messages}, ensure_ascii=False)
    (tmp_path / "talks.jsonl").write_bytes(f"{line}\r\n{line}\r\n".encode())
    texts, problems = read(tokenizer, tmp_path / "talks.jsonl")
    assert problems == []
    assert [tokenizer.decode(text.reply) for text in texts] == ["one\u2028two\x85three"] * 2
