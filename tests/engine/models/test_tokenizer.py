"""The plain tokenizer says what transformers' own says; a draft must mean the same tokens as the target."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specchat.engine import EngineError, Sampling
from specchat.engine.models.load import load_tokenizer
from specchat.engine.models.tokenizer import FILE, PlainTokenizer, check_vocabularies, tokenizer_facts
from specchat.engine.sequence.template import render
from tests.engine.tiny import ask, ids_of, said_while_loading, tiny_engine, tiny_model
from tests.tiny_model import write_tiny_model

TEXTS = ("Hello  world 12 345\n\n", "<|im_start|>user\nümlaut 🦊<|im_end|>\n", " \t x", "")
TALK = [
    {"role": "system", "content": "Be <b>brief</b> & kind."}, {"role": "user", "content": "Hi "},
    {"role": "assistant", "content": " Hello 'you'"}, {"role": "user", "content": "ü?"},
]  # fmt: skip
TEMPLATES = {
    "own lines": "{% for m in messages %}\n  {% if loop.first %}\n  {{ m.role }}\n  {% endif %}\n{% endfor %}",
    "loop controls": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}|{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "named tokens": "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ add_generation_prompt }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "namespace": "{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}{{ n.x }}",
    "date": "{{ strftime_now('%Y') }}",
    "arguments of json": "{{ {'b': 'é', 'a': 1} | tojson(true, 2) }}{{ [1, 2] | tojson(separators=(',', ':')) }}",
}


@pytest.fixture(scope="module")
def theirs(default_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(default_model)


@pytest.fixture(scope="module")
def ours(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> PlainTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    theirs.backend_tokenizer.save(str(folder / FILE))
    return PlainTokenizer.open(folder, tokenizer_facts(theirs))


@pytest.mark.parametrize("text", TEXTS)
def test_encoding_and_decoding(text: str, theirs: Any, ours: PlainTokenizer) -> None:
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    for skip in (False, True):
        mine = ours.decode(ids, skip_special_tokens=skip)
        assert mine == theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


def test_vocabulary_and_special_tokens(theirs: Any, ours: PlainTokenizer) -> None:
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.all_special_ids == list(range(17))  # transformers names three of them
    assert [ours.convert_ids_to_tokens(i) for i in (0, 2, 700)] == theirs.convert_ids_to_tokens([0, 2, 700])


@pytest.mark.parametrize("template", [None, *TEMPLATES.values()], ids=["its own", *TEMPLATES])
def test_chat_templates(template: str | None, theirs: Any, ours: PlainTokenizer) -> None:
    facts = tokenizer_facts(theirs)
    mine = PlainTokenizer(ours.backend_tokenizer, facts | ({"chat_template": template} if template else {}))
    expected = theirs.apply_chat_template(TALK, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert render(mine, TALK) == expected


def test_a_template_may_refuse(theirs: Any, ours: PlainTokenizer) -> None:
    facts = tokenizer_facts(theirs) | {"chat_template": "{{ raise_exception('roles must alternate') }}"}
    with pytest.raises(Exception, match="roles must alternate"):
        render(PlainTokenizer(ours.backend_tokenizer, facts), TALK)


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
LONGER = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 99}


@pytest.mark.parametrize(
    "steps",
    [{"pre_tokenizer": [BYTES] * 1000}, {"pre_tokenizer": [BYTES] * 30}, {"normalizer": [LONGER] * 9}],
    ids=["many", "bytes", "replacements"],
)
def test_steps_that_multiply_the_text_are_refused(steps: dict[str, Any], tmp_path: Path) -> None:
    file = write_tiny_model(tmp_path) / FILE
    names = {"pre_tokenizer": "pretokenizers", "normalizer": "normalizers"}
    changed = {part: {"type": "Sequence", names[part]: each} for part, each in steps.items()}
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    with pytest.raises(EngineError, match=f"tokenizer.json has a {next(iter(steps))} of"):
        load_tokenizer(file.parent)


def vocabulary(first: int, end: int, **changed: int) -> Any:
    """What the check looks at of a tokenizer with such ids."""
    tokens = {f"t{i}": i for i in range(first, end) if i not in changed.values()} | changed
    return SimpleNamespace(get_vocab=lambda: tokens)


def test_one_may_know_more_at_the_tail() -> None:
    check_vocabularies(vocabulary(0, 100), vocabulary(0, 96), {2}, {2})
    check_vocabularies(vocabulary(0, 96), vocabulary(0, 100), {2}, {2})


@pytest.mark.parametrize(
    ("draft", "end", "sentence"),
    [
        (vocabulary(0, 100, y=9, x=7), 2, r"token 7 is 'x' in the draft and 't7' in the target"),
        (vocabulary(50, 150), 60, "they share 50 token ids of 100 and 100"),
        (vocabulary(0, 100), 3, r"ends its replies with 't3' and the target with 't2'"),
    ],
)
def test_what_differs_is_named(draft: Any, end: int, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        check_vocabularies(vocabulary(0, 100), draft, {2}, {end})


@pytest.mark.parametrize(("target_size", "draft_size"), [(300, 320), (320, 300)])
def test_padded_widths_of_one_family_draft_for_each_other(target_size: int, draft_size: int) -> None:
    """Tokens beyond the target's are never drafted, tokens that the draft lacks have probability 0 (Qwen2.5)."""
    target, draft = (tiny_model(seed=seed, width=size) for seed, size in ((0, target_size), (9, draft_size)))
    with tiny_engine(target, draft=draft) as engine:
        for sampling in (Sampling(), Sampling(temperature=1.0, seed=1)):
            events = list(engine.stream(ask("abc", drafter="model", gamma=3, max_tokens=12, sampling=sampling)))
            assert ids_of(events)
            if sampling.greedy:
                plain = list(engine.stream(ask("abc", drafter="none", max_tokens=12)))
                assert ids_of(events) == ids_of(plain)


def test_a_draft_that_is_no_smaller_than_its_target_is_warned_of() -> None:
    with tiny_engine(tiny_model(), draft=tiny_model(seed=3, hidden=64)) as engine:
        notices = said_while_loading(engine)
    assert len(notices) == 1
    assert "is not smaller than the target" in notices[0]
