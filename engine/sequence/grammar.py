"""Grammars of constraints for llguidance (Moskal et al. 2025), and what is wrong with a constraint.

llguidance follows a grammar token by token: an Earley parser over a lexer of derivatives of regular expressions, with
masks from a trie of the vocabulary. It is imported with the first constraint, as a start needs none.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from specchat.engine.errors import EngineError, check
from specchat.engine.request import FIELD, Constraint, ConstraintKind
from specchat.engine.sequence.json_schema import is_finite, read_schema, simplified

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, as `json.dumps` writes it: with other white space less text would be certain, and a model could
write white space without end, as vLLM allows by default. A schema may set its own `x-guidance`."""
_GBNF, _NO_START = "::=", "it has no rule `start` (in GBNF `root ::= …`), with which a text begins: add one"
_LONGEST_REASON = 200
"""Characters of a reason from llguidance."""
_PLAIN = {
    r"(?:.*: )?Resource '(?:json-schema:///)?([^']{1,120}).*":
        r"refers to \1, which is never fetched: put the definition under $defs",
    r"Unimplemented keys: \[(.*)\]": r"uses \1, which is not supported: remove it",
    "oneOf constraints are not supported.*": "has a oneOf whose options overlap: use anyOf",
    ".*Too many items.*":
        "cannot be used: no finite text follows it, or it takes too much work: "
        "give each part that recurs an alternative that ends",
    ".*(?:too many (?:expressions|states)|too big|schema too large|fuel|precomputation failed|level exceeded).*":
        "takes too much work: shorten it, above all its patterns and repetitions",
}  # fmt: skip
"""What a constraint does, for reasons from llguidance that do not say what to do."""
_ENDLESS = "Too many items"
"""llguidance's reason for a text that has to follow without end."""
_STRING = r'"(?:\\.|[^"\\\n])*"'
_LEFT_OUT = r"(?://|#).*|\[[^\]\n]*\]|^%(?:ignore|llguidance) .*"
_LITERALS = re.compile(
    rf"(?P<out>{_LEFT_OUT})|{_STRING}\s*\.\.\s*{_STRING}|{_STRING}i?|/(?:\\.|[^/\\\n])+/[a-z]*|<[^<>\s]+>", re.M
)
"""Ranges, strings, regular expressions and special tokens of a Lark grammar; comments, options and what is ignored."""
_TERMINALS = re.compile(r"^([_A-Z][_A-Z0-9.]*[ \t]*:).*(?:\n[ \t|].*|\n[ \t]*$)*", re.M)
"""Definitions of terminals, which do not recur, but may exclude texts."""


@lru_cache(maxsize=64)
def check_constraint(constraint: Constraint) -> None:
    """Check a constraint without a vocabulary; nothing is fetched.

    Raises:
        EngineError: it is not valid, or no text or only endless text satisfies it.
    """
    from llguidance import LLTokenizer

    if constraint.kind is ConstraintKind.CALL:
        return
    schema = read_schema(constraint.text) if constraint.kind is ConstraintKind.SCHEMA else None
    matcher = matcher_of(constraint, "", LLTokenizer("byte"))
    matcher.compute_bitmask()
    check_matcher(constraint, matcher)
    finite = schema is None or is_finite(schema)
    check(finite, "the JSON schema requires itself without end: make the part that recurs optional", FIELD)
    if constraint.kind is ConstraintKind.GRAMMAR:
        check(_is_finite(constraint.text), _sentence(constraint, _ENDLESS), FIELD)
    matcher.try_consume_tokens(matcher.compute_ff_tokens()[:1])  # fails if text is forced without end
    check_matcher(constraint, matcher)


def matcher_of(constraint: Constraint, lead: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher before the first token.

    Args:
        constraint: what the answer follows.
        lead: Lark rules of what may precede the rule `@answer`; empty for nothing.
        tokenizer: of the tokens to be matched.

    Raises:
        EngineError: the constraint is not valid.
    """
    from llguidance import LLMatcher, LLParserLimits, regex_to_lark
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        if constraint.kind is ConstraintKind.SCHEMA:
            text = json.dumps(simplified(read_schema(constraint.text)))  # of a dict, it takes no long integers
            made = LLMatcher.grammar_from_json_schema(text, _JSON)  # type: ignore[arg-type]
        elif constraint.kind is ConstraintKind.REGEX:
            made = LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(constraint.text, 'dw')}/")
        elif constraint.kind is ConstraintKind.CALL:
            made = LLMatcher.grammar_from_lark(constraint.text)
        else:
            made = LLMatcher.grammar_from_lark(any_to_lark(constraint.text))
    except EngineError:
        raise
    except Exception as error:  # of the converters, which take Lark without a rule start for GBNF
        lark = constraint.kind is ConstraintKind.GRAMMAR and _GBNF not in constraint.text
        raise EngineError(_sentence(constraint, _NO_START if lark else str(error)), FIELD) from None
    if lead:
        is_schema = constraint.kind is ConstraintKind.SCHEMA  # otherwise it is Lark
        body = {**(json.loads(made)["grammars"][0] if is_schema else {"lark_grammar": made}), "name": "answer"}
        made = json.dumps({"grammars": [{"name": "reply", "lark_grammar": lead}, body]})
    matcher = LLMatcher(tokenizer, made, log_level=0, limits=LLParserLimits(verbose_errors=False))
    check_matcher(constraint, matcher)
    return matcher


def _is_finite(grammar: str) -> bool:
    """Whether a valid grammar derives a finite text. Then its start may be empty once all terminals are empty."""
    from llguidance import LLMatcher, LLTokenizer
    from llguidance.gbnf_to_lark import any_to_lark

    rules = _LITERALS.sub(lambda found: "" if found["out"] else '""', any_to_lark(grammar))
    rules = _TERMINALS.sub(r'\1 ""', rules)
    if "%" in rules:  # an import, or a grammar of another kind in it
        return True
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(rules), log_level=0)
    return matcher.is_error() or matcher.is_accepting()  # other extensions of Lark may not be valid once they are empty


def check_matcher(constraint: Constraint, matcher: LLMatcher) -> None:
    """Check that a matcher is in no error state.

    Raises:
        EngineError: it is, as the constraint is not valid or takes too much work.
    """
    check(not matcher.is_error(), _sentence(constraint, matcher.get_error()), FIELD)


def _sentence(constraint: Constraint, reason: str) -> str:
    """Message for a reason in the words of llguidance, of which one line says most."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["it is not valid"]
    said = next((line for line in lines if line.startswith("error: ")), lines[0]).removeprefix("error: ")
    for known, sentence in _PLAIN.items():
        if found := re.fullmatch(known, said):
            return f"the {constraint.kind} {found.expand(sentence)}"
    if said.startswith("NoExtension"):
        said = "no text satisfies it"
    return f"the {constraint.kind} cannot be used: {said[:_LONGEST_REASON]}"
