"""Tokenizers of GGUF files as others write them: types, ends of turns, spaces, BOS tokens, ways of splitting text."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specchat.engine import EngineConfig, EngineError, Message, Request
from specchat.engine.models.gguf.header import GgufHeader
from specchat.engine.models.gguf.tokenizer import read_tokenizer
from specchat.engine.models.load import load_tokenizer
from specchat.engine.models.tokenizer import PlainTokenizer
from specchat.engine.sequence.prompt import encode
from specchat.engine.tools.runner import running
from tests.tiny_model import write_tiny_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def bytes_of(text: str) -> str:
    """A text as byte-level vocabularies spell it, without characters beyond ASCII."""
    return text.replace(" ", "Ġ").replace("\n", "Ċ")


LETTERS = [bytes_of(chr(code)) for code in (10, *range(32, 127))]
FIRST = len(LETTERS) + 1
"""Id of the first special token, after one that is merged."""


def of_bytes(
    *special: tuple[str, int], joined: tuple[str, ...] = ("a b",), template: str = CHATML, **keys: Any
) -> PlainTokenizer:
    """Tokenizer with all ASCII characters, then what the merges join, then the special tokens with their types."""
    texts = [*LETTERS, *(merge.replace(" ", "") for merge in joined), *(text for text, _ in special)]
    return tokenizer_of(
        "gpt2",
        texts,
        [NORMAL] * (len(texts) - len(special)) + [kind for _, kind in special],
        template,
        **{"pre": "gpt-2", "merges": list(joined), **keys},
    )


def of_characters(*words: str, special: tuple[tuple[str, int], ...] = (), **keys: Any) -> PlainTokenizer:
    """SentencePiece tokenizer: three control tokens, all bytes, all ASCII characters, words by falling score."""
    letters = ["▁", *(chr(code) for code in range(33, 127))]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(letters) + len(words))]
    scores = [-float(place) for place in range(len(texts))]
    texts, kinds = texts + [text for text, _ in special], kinds + [kind for _, kind in special]
    scores += [-1000.0] * len(special)
    return tokenizer_of("llama", texts, kinds, "", scores=scores, **keys)


def tokenizer_of(
    kind: str, texts: list[str], kinds: list[int], template: str, name: str = "x", **keys: Any
) -> PlainTokenizer:
    stated = {"model": kind, "tokens": texts, "token_type": kinds, **keys}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in stated.items() if value is not None}
    metadata |= {"general.architecture": "llama", "general.name": name, "tokenizer.chat_template": template}
    return read_tokenizer(GgufHeader(Path("x.gguf"), metadata, {}))


def parts(tokenizer: PlainTokenizer, text: str) -> list[str | None]:
    return [tokenizer.convert_ids_to_tokens(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def ends(tokenizer: PlainTokenizer, *stated: int) -> set[str | None]:
    return {tokenizer.convert_ids_to_tokens(end) for end in tokenizer.end_ids(stated, 1000)}


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED, NORMAL])
@pytest.mark.parametrize("text", ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<eos>", "[EOT]", "[e~["])
def test_known_ends_of_turns_count_whatever_their_type(text: str, kind: int) -> None:
    tokenizer = of_bytes(("<pad>", CONTROL), (text, kind))
    assert ends(tokenizer) == {text}
    assert parts(tokenizer, f"a{text}b") == ["a", text, "b"]
    assert tokenizer.decode(tokenizer.encode(f"a{text}b"), skip_special_tokens=True) == "ab"


def test_stated_ends_count_too_unless_the_model_has_no_such_token() -> None:
    tokenizer = of_bytes(("<|odd|>", CONTROL))
    odd = tokenizer.encode("<|odd|>")
    assert tokenizer.end_ids([*odd, -1, 5000], 1000) == set(odd)


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        (["<|end|>", "<|return|>", "<|call|>"], {"<|return|>", "<|call|>"}),
        (["<|end|>", "<|flush|>", "<|calls|>"], {"<|flush|>", "<|calls|>"}),
        (["<|eom|>", "<|eot|>"], {"<|eot|>"}),
        (["</s>", "<|tool_response>", "<turn|>"], {"<|tool_response>", "<turn|>"}),
    ],
)
def test_what_ends_a_part_of_a_message_is_no_end(special: list[str], expected: set[str]) -> None:
    assert ends(of_bytes(*((text, CONTROL) for text in special))) == expected


def test_a_tag_of_html_is_no_end() -> None:
    joined = ("< /", "</ s", "</s >")
    assert ends(of_bytes(("<|im_end|>", CONTROL), joined=joined)) == {"<|im_end|>"}
    assert parts(of_bytes(joined=joined), "</s>") == ["</", "s", ">"]
    assert ends(of_bytes(("</s>", USER_DEFINED), ("<|im_end|>", CONTROL))) == {"<|im_end|>"}
    assert ends(of_bytes(("</s>", CONTROL))) == {"</s>"}


def test_marks_of_the_template_that_are_typed_as_text() -> None:
    tokenizer = of_bytes(("<start_of_turn>", NORMAL), ("<plain>", NORMAL), template="<start_of_turn>{{ x }}")
    assert parts(tokenizer, "<start_of_turn>a<b>") == ["<start_of_turn>", "a", "<", "b", ">"]
    assert len(parts(tokenizer, "<plain>")) == 7
    untyped = of_bytes(("<|im_start|>", NORMAL), token_type=None)
    assert parts(untyped, "<|im_start|>a") == ["<|im_start|>", "a"]


def test_text_of_each_type() -> None:
    tokenizer = of_bytes(("<think>", USER_DEFINED), ("<|im_start|>", CONTROL), ("[PAD1]", UNUSED), ("  ", USER_DEFINED))
    first = FIRST
    every = [0 + first, 1 + first, 2 + first, 3 + first]
    assert tokenizer.decode(every) == "<think><|im_start|>[PAD1]  "
    assert tokenizer.decode(every, skip_special_tokens=True) == "<think>  "
    assert len(parts(tokenizer, "[PAD1]")) == 6


def test_two_tokens_of_one_text() -> None:
    tokenizer = of_bytes(("<|im_end|>", NORMAL), ("<|im_end|>", CONTROL), ("a", UNUSED))
    ordinary, control, unused = range(FIRST, FIRST + 3)
    assert tokenizer.encode("<|im_end|>") in ([ordinary], [control])
    assert tokenizer.end_ids([], 1000) == {ordinary, control}
    assert tokenizer.encode("a") == [LETTERS.index("a")]
    assert tokenizer.convert_ids_to_tokens(unused) == tokenizer.decode([unused]) == "a"


@pytest.mark.parametrize("template", [CHATML, "<s>" + CHATML], ids=["template without", "template with"])
@pytest.mark.parametrize(
    ("keys", "count"),
    [({"add_bos_token": True}, 1), ({"add_bos_token": False}, 0), ({}, 0), ({"pre": "llama-bpe"}, 1)],
    ids=str,
)
def test_a_prompt_begins_with_one_bos_token(template: str, keys: dict[str, Any], count: int) -> None:
    special = ("<s>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)
    bos = FIRST
    tokenizer = of_bytes(*special, template=template, bos_token_id=bos, **keys)
    chat = encode(Request("r", (Message("user", "hi"),)), tokenizer)
    assert chat.count(bos) == max(count, template.startswith("<s>"))
    assert (chat[0] == bos) == (chat.count(bos) == 1)
    assert encode(Request("r", prompt="hi"), tokenizer).count(bos) == count
    assert encode(Request("r", prompt="<s>hi"), tokenizer).count(bos) == 1


def test_texts_that_end_with_the_eos_token() -> None:
    eos = FIRST
    special = ("<|im_end|>", CONTROL), ("<|im_start|>", CONTROL)
    tokenizer = of_bytes(*special, eos_token_id=eos, add_eos_token=True)
    assert tokenizer.encode("a") == [LETTERS.index("a"), eos]
    assert encode(Request("r", (Message("user", "hi"),)), tokenizer)[-1] == 0  # the template's end: a newline


@pytest.mark.parametrize("wrong", [-1, (1 << 32) - 1, 5000])
def test_named_tokens_outside_the_vocabulary_are_ignored(wrong: int) -> None:
    keys = {f"{name}_token_id": wrong for name in ("bos", "eos", "eot", "eom", "padding", "unknown")}
    tokenizer = of_bytes(("<|im_end|>", CONTROL), add_bos_token=True, **keys)
    assert parts(tokenizer, "a") == ["a"]
    assert ends(tokenizer) == {"<|im_end|>"}


def test_spaces_as_sentencepiece_writes_them() -> None:
    tokenizer = of_characters("▁▁", "▁▁▁▁", "ab", "▁ab", special=(("<|user|>", CONTROL),))
    assert parts(tokenizer, "ab") == ["▁ab"]
    assert parts(tokenizer, " ") == ["▁▁"]
    assert parts(tokenizer, "<|user|>ab") == ["<|user|>", "▁ab"]
    assert parts(tokenizer, "\n    x") == ["▁", "<0x0A>", "▁▁▁▁", "x"]
    assert tokenizer.decode(tokenizer.encode("\n    x é"), skip_special_tokens=True) == "\n    x é"
    assert tokenizer.encode("ab")[0] == 1  # <s>
    plain = of_characters("ab", "▁ab", add_space_prefix=False)
    assert parts(plain, "ab ") == ["ab", "▁"]
    assert plain.decode(plain.encode(" ab"), skip_special_tokens=True) == " ab"


@pytest.mark.parametrize("space", [" ", "▁"])
def test_runs_of_spaces_are_split_from_the_left(space: str) -> None:
    runs = tuple((space * length, USER_DEFINED) for length in range(2, 32))
    tokenizer = of_characters("▁x", special=runs, add_space_prefix=False)
    assert parts(tokenizer, " " * 36) == ["▁" * 31, "▁" * 5]
    assert parts(tokenizer, "x    x") == ["x", "▁" * 4, "x"]


def test_pairs_of_the_highest_score_are_merged_first() -> None:
    assert parts(of_characters("bc", "ab", add_space_prefix=False), "abc") == ["a", "bc"]
    assert parts(of_characters("ab", "bc", add_space_prefix=False), "abc") == ["ab", "c"]


@pytest.mark.parametrize(("name", "drops"), [("Phi-3 mini", True), ("phi3", True), ("Llama", False)])
def test_phi_3_drops_the_spaces_after_its_marks(name: str, drops: bool) -> None:
    special = ("<|user|>", CONTROL), ("<|endoftext|>", CONTROL)
    tokenizer = of_characters("▁H", special=special, name=name)
    assert parts(tokenizer, "<|user|>\nHi")[1:] == (["▁H", "i"] if drops else ["▁", "<0x0A>", "H", "i"])
    assert "<0x0A>" in parts(tokenizer, "<|endoftext|>\nHi")


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["12345", " ab", ",", "\n\n"]),
        ("smollm", [*"12345", " ab", ",", "\n\n"]),
        ("llama-bpe", ["123", "45", " ab", ",\n\n"]),
        ("qwen2", [*"12345", " ab", ",\n\n"]),
        ("deepseek-v3", ["123", "45", " ab", ",\n\n"]),
        ("deepseek-coder", [*"12345", " ab", ",", "\n", "\n"]),
        ("deepseek-llm", [*"12345", " ab", ",", "\n", "\n"]),
        ("falcon", ["123", "45", " ab", ",", "\n\n"]),
        (None, ["123", "45", " ab", ",", "\n\n"]),
        ("seed-coder", [*"12345", " ab", ",", "\n\n"]),
        ("afmoe", ["12", "345", " ab", ",\n\n"]),
        ("minicpm5", ["123", "45", " ab", ",\n\n"]),
        ("tekken", [*"12345", " ab", ",\n\n"]),
    ],
    ids=str,
)
def test_text_is_split_as_the_file_says(pre: str | None, expected: list[str]) -> None:
    backend = of_bytes(pre=pre).backend_tokenizer
    found = backend.pre_tokenizer.pre_tokenize_str("12345 ab,\n\n")
    assert [part for part, _ in found] == [bytes_of(part) for part in expected]


def test_an_unknown_way_of_splitting_needs_the_models_own_tokenizer(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    source = tiny_model()
    file = write_tiny_gguf(source, tmp_path / "x.gguf", tokenizer__ggml__pre="k9")
    config = EngineConfig(str(file), tmp_path / "models", context=64, slots=1)
    sentence = (
        r"x\.gguf splits text as 'k9' \(tokenizer\.ggml\.pre\).*: give the model's own tokenizer with --tokenizer"
    )
    with pytest.raises(EngineError, match=sentence), running(config):
        pass
    with running(replace(config, tokenizer=str(source))) as (engine, _, _):
        assert engine.prompt_ids(Request("r", prompt="the fox 12")) == load_tokenizer(source).encode("the fox 12")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"token_type": [1, 1]}, r"2 tokenizer\.ggml\.token_type"),
        ({"merges": None}, r"lacks tokenizer\.ggml\.merges"),
    ],
    ids=str,
)
def test_lists_that_lack_entries_are_named(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence) as caught:
        of_bytes(**keys)
    assert "\n" not in str(caught.value)
