"""The plain tokenizer says what transformers' own says."""

from pathlib import Path
from typing import Any

import pytest

from specchat.engine.models.load import load_tokenizer
from specchat.engine.models.tokenizer import FILE, PlainTokenizer, tokenizer_facts

TEXTS = ("Hello  world 12 345\n\n", "<|im_start|>user\nümlaut 🦊<|im_end|>\n", " \t x", "")
TALK = [
    {"role": "system", "content": "Be <b>brief</b> & kind."},
    {"role": "user", "content": "Hi "},
    {"role": "assistant", "content": " Hello 'you'"},
    {"role": "user", "content": "ü?"},
]
TEMPLATES = {
    "own lines": "{% for m in messages %}\n  {% if loop.first %}\n  {{ m.role }}\n  {% endif %}\n{% endfor %}",
    "loop controls": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}|{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
    "named tokens": "{{ bos_token }}{{ eos_token }}{{ tools is none }}{{ add_generation_prompt }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "namespace": "{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}{{ n.x }}",
    "date": "{{ strftime_now('%Y') }}",
}


@pytest.fixture(scope="module")
def theirs(default_model: Path) -> Any:
    return load_tokenizer(default_model)


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
    assert sorted(ours.all_special_ids) == sorted(theirs.all_special_ids)
    assert [ours.convert_ids_to_tokens(i) for i in (0, 2, 700)] == theirs.convert_ids_to_tokens([0, 2, 700])


@pytest.mark.parametrize("template", [None, *TEMPLATES.values()], ids=["its own", *TEMPLATES])
def test_chat_templates(template: str | None, theirs: Any, ours: PlainTokenizer) -> None:
    facts = tokenizer_facts(theirs)
    mine = PlainTokenizer(ours.backend_tokenizer, facts | ({"chat_template": template} if template else {}))
    expected = theirs.apply_chat_template(TALK, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert mine.apply_chat_template(TALK) == expected


def test_a_template_may_refuse(theirs: Any, ours: PlainTokenizer) -> None:
    facts = tokenizer_facts(theirs) | {"chat_template": "{{ raise_exception('roles must alternate') }}"}
    with pytest.raises(Exception, match="roles must alternate"):
        PlainTokenizer(ours.backend_tokenizer, facts).apply_chat_template(TALK)
