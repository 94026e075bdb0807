"""Sanitizing of text for the terminal and for the model, and checks of addresses.

Models and piped files can contain escape sequences. `escape_controls` replaces characters that a terminal acts on or
does not show by visible ones; `clean_prompt` removes control characters from typed, pasted or piped text.
"""

import ipaddress
import re

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_LINE_ENDS = "\u2028\u2029"
_MARKS = "\u061c\u200e\u200f"
_OVERRIDES = "\u202a-\u202e\u2066-\u2069"
"""Embeddings, overrides and isolates: like marks, they reorder the text around them, but further."""
_JOINERS = "\u00ad\u200c\u200d"
"""Soft hyphen, zero width non-joiner and joiner: legitimate, but terminals disagree about their width."""
_INVISIBLE = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Unicode's default ignorable code points, except joiners and the 16 variation selectors of symbols and emoji."""
_SURROGATES = "\ud800-\udfff"

_ACTING = re.compile(f"[{_CONTROLS}{_LINE_ENDS}{_MARKS}{_OVERRIDES}{_JOINERS}{_INVISIBLE}{_SURROGATES}]")
_STEERING = re.compile(f"[{_CONTROLS}{_OVERRIDES}]")
_DROPPED = re.compile(f"[{_CONTROLS}]")
_UNIT = re.compile("....")
_HALVES = re.compile(f"[{_SURROGATES}]")

_OPENED = re.compile(r"(https?://[^/]|mailto:.)", re.IGNORECASE)
"""The schemes of addresses that may be opened."""

_LOGIN = re.compile(r"^(\w+://)?.*@", re.DOTALL)

_PICTURES = {chr(code): chr(0x2400 + code) for code in range(0x20)} | {
    "\x7f": "\u2421",
    "\u2028": "\u2424",
    "\u2029": "\u2424",
    **dict.fromkeys(_JOINERS, "\u2027"),
}
_NO_PICTURE = "\ufffd"


def escape_controls(text: str) -> str:
    """Replace every character that a terminal acts on or hides by one visible character; \\n and \\t stay.

    Control characters become their pictures (ESC is ␛, CR is ␍), joiners and soft hyphens a small dot (‧), the rest
    (C1, direction marks, characters without width, half characters) the replacement character. Lengths do not change,
    so positions in the text stay valid.
    """
    return _ACTING.sub(_picture, text)


def escape_steering(text: str) -> str:
    """Like `escape_controls` for a file: characters that only have no width or a direction stay, such as joiners."""
    return _STEERING.sub(_picture, text.replace("\r\n", "\n"))


def escape_json(text: str) -> str:
    """JSON text in which these characters are escapes, so that it prints safely and means the same."""
    return _ACTING.sub(lambda match: _UNIT.sub(r"\\u\g<0>", match[0].encode("utf-16-be", "surrogatepass").hex()), text)


def _picture(match: re.Match[str]) -> str:
    return _PICTURES.get(match[0], _NO_PICTURE)


def without_controls(text: str) -> str:
    """The text without C0 and C1 control characters; tabs and line ends of every kind stay."""
    return _DROPPED.sub(lambda match: match[0] if match[0] == "\r" else "", text)


def opens_safely(address: str) -> bool:
    """Whether a link from a model may be opened in a browser: a page or a mail address without hidden characters."""
    return bool(_OPENED.match(address)) and escape_controls(address) == address and not re.search(r"\s", address)


def clean_prompt(text: str) -> str:
    """Clean typed or piped text for a tokenizer: line ends become \\n, control characters are removed.

    Lone surrogates (Python's result of broken UTF-8) become the replacement character.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _HALVES.sub(_NO_PICTURE, _DROPPED.sub("", text))


def is_this_machine(host: str) -> bool:
    """Whether this is a loopback address, which other machines cannot reach or use."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def without_password(address: str) -> str:
    """An address without the name and password in it."""
    return _LOGIN.sub(r"\1", address)
