"""Values of `tokenizer.ggml.pre`: how the text of a byte-level vocabulary is split before bytes are merged.

The patterns are copied from the models' own tokenizer.json; llama.cpp's llama-vocab.cpp says which value means which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_SIGNS}|{_SPACES}"
_LLAMA = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_HAN, _KANA = "[一-龥ࠀ-一가-퟿]+", "[一-龥぀-ゟ゠-ヿ]+"
_ASIAN = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_HANGUL = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_ALPHABETS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ\u1f5f-\u1f7d"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ\u1fd0-\u1fd3\u1fd6-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝ\u2124\u2126ℨ\u212a-\u212dℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ"
    "𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_SIGNED = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+{ends}|"""
    r"\s+(?!\S)|\s+"
)
_DEEPSEEK = _SIGNED.replace("{ends}", r"[\r\n]*|\s*[\r\n]+")
_RUNS = "|".join(rf"\s{{{1 << power}}}(?!\S)" for power in range(9, 1, -1))


def _cased(end: str, number: str, signs: str = r"[\r\n/]*", without: str = "") -> str:
    """Pattern whose words begin with capitals, or have none after the first letter."""
    upper, lower = (rf"[\p{{L{kind}}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]" for kind in (r"u}\p{Lt", "l"))
    first = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{first}{upper}*{lower}+{end}|{first}{upper}+{lower}*{end}|{number}| ?[^\s\p{{L}}\p{{N}}]+{signs}|{_SPACES}"
    )


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


_GPT_4O = _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_SPLITS: dict[tuple[str, ...], str] = {
    ("punctuation", "gpt-2", "numbers", "[0-9][0-9][0-9]"): "default falcon",
    ("gpt-2",): (
        "gpt-2 phi-2 jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
        "modern-bert mpt olmo jais trillion granite-docling exaone4"
    ),
    ("digits", "gpt-2"): "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    (_LLAMA,): (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe glm4 chatglm-bpe"
    ),
    (_QWEN,): "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    (_QWEN.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),): "qwen35",
    (_QWEN.removeprefix(f"{_CONTRACTIONS}|"),): "ufakzeka",
    (r"[^\n]+|[\n]+", _QWEN): "laguna",
    (r"\p{N}{1,3}", _LLAMA.replace("{1,3}", "+")): "minicpm5",
    (_LLAMA.replace(_SPACES, rf"\s*[\r\n]+|{_RUNS}|\s{{1,2}}(?!\S)|\s"),): "jais-2",
    (rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",): "seed-coder",
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ): "bailingmoe bailingmoe2 llada-moe",
    (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ): "exaone-moe",
    (r"\p{N}{1,3}", _KANA, _DEEPSEEK): "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    (r"\p{N}{1,3}", _KANA, _SIGNED.replace("{ends}", r"|[\r\n]"), r"\p{N}"): "spark2_5",
    (_THREES, _ASIAN, _DEEPSEEK): "afmoe",
    (
        r"[\r\n]", rf"\s?[{_ALPHABETS}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _HAN, "digits",
    ): "deepseek-llm",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, "digits"): "deepseek-coder",
    (_BLOOM,): "poro-chat bloom gpt3-finnish",
    (_BLOOM, "digits"): "viking",
    (_cased("", r"\p{N}"),): "tekken",
    (_GPT_4O,): "gpt-4o llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m",
    (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O): "tiny_aya cohere2moe",
    (_HANGUL, _cased(f"{_CONTRACTIONS}?", r"\p{N}")): "youtu",
    (
        r"[\p{Han}]+|" + _cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}", r"[\r\n]*", r"&&[^\p{Han}]"),
    ): "kimi-k2",
    (r"\p{N}+", r"(?=(\d{3})+(?!\d))"): "superbpe",
    (
        "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", "digits",
        r"[\p{P}!-/:-@\[-`{-~]", "gpt-2",
    ): "chameleon",
}  # fmt: skip
"""Steps by names: regular expressions, each of whose matches becomes a part, or steps of the library."""
_BY_NAME = {name: steps for steps, names in _SPLITS.items() for name in names.split()}

COMPOSED = _named("qwen2 qwen35 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan mpt olmo command-r")
"""Values for vocabularies of composed characters (Unicode NFC)."""
_OF_LLAMA = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken"
WHOLE_WORDS = _named(f"{_OF_LLAMA} youtu minicpm5 granite-embed-multi-97m")
"""Values with which a word that is a token is not merged from its parts."""
BEGINS = _named(f"{_OF_LLAMA} chameleon gemma4")
"""Values with which texts begin with the BOS token, if the file does not say whether they do."""
UNSPLIT = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
"""Values for vocabularies of characters as SentencePiece writes them, which merge across words."""


def pre_tokenizer(name: str) -> Any | None:
    """The pre-tokenizer of the `tokenizers` library for a value of `tokenizer.ggml.pre`; None if it is not known."""
    from tokenizers import Regex, pre_tokenizers

    if (steps := _BY_NAME.get(name)) is None:
        return None
    known: dict[str, Callable[[], Any]] = {
        "punctuation": lambda: pre_tokenizers.Punctuation("contiguous"),
        "digits": lambda: pre_tokenizers.Digits(individual_digits=True),
        "numbers": lambda: pre_tokenizers.Digits(individual_digits=False),
        "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    }
    made = [known[step]() if step in known else pre_tokenizers.Split(Regex(step), "isolated") for step in steps]
    if "gpt-2" not in steps:
        made.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(made)
