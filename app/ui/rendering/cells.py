"""Width of a text in cells, and its characters as readers see them: one measure for the app, Textual and Rich.

A character may consist of several code points, and terminals disagree about the cells of such characters. Here each
has the cells of all its code points, as in most terminals, and `placed` makes the rest of a line independent of the
terminal's own count. Importing this module replaces the functions of Rich and Textual that measure and cut.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import Any

from rich import _unicode_data, cells
from rich.cells import CellTable, cell_len, get_character_cell_size
from rich.segment import Segment
from textual.document import _wrapped_document

from specchat.app.sanitize import escape_controls

_TABLE = _unicode_data.load("auto")
_TONES = range(0x1F3FB, 0x1F400)
"""Skin tones, of no width for Rich: a terminal that does not know them draws two cells after the emoji."""
_EMOJI_STYLE = "\ufe0f"
_FIRST_SIGN = "\u0300"
_FLAG_LETTER = "[\U0001f1e6-\U0001f1ff]"
_JAMO = "[\u1100-\u115f\ua960-\ua97c]"
_INDIC = "[\u0904-\u1cff\ua800-\uabff\U00011000-\U00011fff]"
_EMOJI = "[\U0001f000-\U0001fbff]"
_UNUSUAL = re.compile(
    "[\u0300-\u036f\u0483-\u1fff\u20d0-\u20f0\u2cef-\u2dff\u302a-\u309a\ua66f-\uabff\ud7b0-\ud7ff\ufb1e-\ufe2f\U00010000-\U0010ffff]"
)
"""Scripts and signs among which all unsure characters are: few ranges, because every output is searched for them."""
_SEQUENCE = "\x1b\\[[0-?]*[@-~]"


def _widths() -> Iterator[tuple[int, int, int]]:
    """Rich's table of ranges, with spacing marks, skin tones and what `escape_controls` makes visible."""
    for first, last, width in _TABLE.widths:
        if width:
            yield first, last, width
            continue
        for code in range(first, last + 1):
            visible = unicodedata.category(chr(code)) == "Mc" or escape_controls(chr(code)) != chr(code)
            yield code, code, 2 if code in _TONES else int(visible)


_OWN_TABLE = CellTable(_TABLE.unicode_version, list(_widths()), _TABLE.narrow_to_wide)


@cache
def _character() -> re.Pattern[str]:
    """One character: a flag, a syllable, or a code point with the signs and joined consonants that follow it."""
    return re.compile(f"(?:{_FLAG_LETTER}{{2}}|{_JAMO}+|.){_signed()}", re.DOTALL)


@cache
def _output() -> re.Pattern[str]:
    """A sequence of the terminal, or a character of which terminals count the cells differently."""
    unsure = f"{_FLAG_LETTER}{{2}}|{_JAMO}{{2,}}|{_EMOJI}|[^\x1b](?={_sign()})|{_sign()}"
    return re.compile(f"{_SEQUENCE}|(?:{unsure}){_signed()}")


@cache
def _signs() -> list[int]:
    """Code points that continue a character: combining marks, vowels, variation selectors, skin tones."""
    codes = [code for first, last, width in _TABLE.widths if not width for code in range(first, last + 1)]
    return [code for code in codes if code >= ord(_FIRST_SIGN) and escape_controls(chr(code)) == chr(code)]


@cache
def _sign() -> str:
    return _class(_signs())


def _signed() -> str:
    virama = _class(code for code in _signs() if unicodedata.combining(chr(code)) == 9)  # it joins consonants
    return f"{_sign()}*(?:(?<={virama}){_INDIC}{_sign()}*)*"


def _class(codes: Iterable[int]) -> str:
    """The class of a regular expression that has these code points."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]"


def characters(text: str) -> list[str]:
    """The characters of a text as readers see them, each with all its code points."""
    return list(text) if cells._is_single_cell_widths(text) else _character().findall(text)


def continuing(before: str, text: str) -> int:
    """Number of code points with which a text continues the last character of the text before it."""
    if not before or text[:1] < _FIRST_SIGN:
        return 0
    last = characters(before)[-1]
    joined = _character().match(last + text)
    return max(joined.end() - len(last), 0) if joined else 0


def placed(output: str) -> str:
    """Output for a terminal in which what follows an unsure character is at its place however the terminal counts.

    Its cells are cleared, it is drawn, and the cursor goes from its beginning to its end.
    """
    return _output().sub(_place, output) if _UNUSUAL.search(output) else output


def _place(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == "\x1b":
        return text
    width = cell_len(text)
    return f"\x1b7{' ' * width}\x1b8\x1b7{text}\x1b8" + (f"\x1b[{width}C" if width else "")


def _load(*_: str) -> CellTable:
    return _OWN_TABLE


def _cell_len(text: str, *_: str) -> int:
    if cells._is_single_cell_widths(text):
        return len(text)
    width = sum(map(get_character_cell_size, text))
    if _EMOJI_STYLE in text:
        width += sum(b == _EMOJI_STYLE and a in _OWN_TABLE.narrow_to_wide for a, b in pairwise(text))
    return width


def _split_graphemes(text: str, *_: str) -> tuple[list[tuple[int, int, int]], int]:
    spans, end = [], 0
    for character in characters(text):
        spans.append((end, end + len(character), cell_len(character)))
        end += len(character)
    return spans, sum(size for _, _, size in spans)


def _split_text(text: str, cell_position: int, *_: str) -> tuple[str, str]:
    """Cut at a cell; a character across it becomes spaces."""
    end = 0
    for first, last, size in _split_graphemes(text)[0]:
        if end == cell_position:
            return text[:first], text[first:]
        if end + size > cell_position:
            return text[:first] + " " * (cell_position - end), " " * (end + size - cell_position) + text[last:]
        end += size
    return text, ""


@lru_cache(1024 * 16)
def _split_segment(segment: Segment, cut: int) -> tuple[Segment, Segment]:
    before, after = _split_text(segment.text, cut)
    return Segment(before, segment.style, segment.control), Segment(after, segment.style, segment.control)


_wrapped: Any = vars(_wrapped_document)["compute_wrap_offsets"]


def _wrap_offsets(text: str, width: int, tab_size: int, *arguments: Any, **options: Any) -> list[int]:
    """Offsets at which the lines of a text area begin: Textual's, moved to the edge of a character."""
    offsets: list[int] = _wrapped(text, width, tab_size, *arguments, **options)
    if cells._is_single_cell_widths(text):
        return offsets
    begins = sorted({0, *accumulate(map(len, characters(text)))})
    inside = {place for first, last in pairwise(begins) for place in range(first + 1, last)}
    while within := next((offset for offset in offsets if offset in inside), None):
        kept = [offset for offset in offsets if offset < within]
        begin = max(first for first in begins if first < within)
        if begin <= (kept[-1] if kept else 0):  # a character that is wider than a line
            inside.discard(within)
            continue
        offsets = [*kept, begin, *(begin + offset for offset in _wrapped(text[begin:], width, tab_size))]
    return offsets


def _install() -> None:
    functions = {"load_cell_table": _load, "_cell_len": _cell_len, "_split_text": _split_text}
    for name, function in {**functions, "split_graphemes": _split_graphemes}.items():
        setattr(cells, name, function)
    segment: Any = Segment
    segment._split_cells = staticmethod(_split_segment)
    area: Any = _wrapped_document
    area.compute_wrap_offsets = _wrap_offsets
    get_character_cell_size.cache_clear()
    cells.cached_cell_len.cache_clear()


_install()
