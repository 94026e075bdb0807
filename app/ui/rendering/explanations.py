"""Every figure in one plain sentence, and in a small picture of what it counts."""

from __future__ import annotations

from typing import NamedTuple

from specchat.app.ui.rendering import definitions as d

WIDEST = 38
"""Cells of the widest picture."""


class Explanation(NamedTuple):
    """What stands above a figure's definition."""

    sentence: str
    picture: str


EXPLANATIONS: dict[d.Figure, Explanation] = {
    d.ACCEPTANCE: Explanation(
        "How often the big model keeps a token that was guessed for it.",
        "guessed   the   old   cat   sat\n"
        "judged     ✓     ✓     ✗     ·\n"
        "          2 kept of 3 judged: 67 %",
    ),
    d.THINKING: Explanation(
        "How often guesses are kept while the model thinks; shown for replies that begin with thinking.",
        "<think> ▇▇▇▇▇▇▇▇ </think> answer",
    ),
    d.ANSWER: Explanation(
        "How often guesses are kept behind the thinking, in what is answered.",
        "<think> … </think> ▇▇▇▇▇▇▇▇",
    ),
    d.DRAFTED: Explanation(
        "What became of all guesses; the parts add up to the whole.",
        "4 drafted = 2 kept   the, old\n"
        "          + 1 refused   cat\n"
        "          + 1 unused      sat",
    ),
    d.POSITIONS: Explanation(
        "The first guess of a round is the easiest; each further one builds on those before it.",
        "1st guess  ▇▇▇▇▇▇▇▇▇  90 %\n"
        "2nd guess  ▇▇▇▇▇▇     62 %\n"
        "3rd guess  ▇▇▇        31 %",
    ),
    d.TAU: Explanation(
        "How many tokens the reply gains for each step of the big model; without guesses it is one.",
        "step 1   the old dog    3 tokens\n"
        "step 2   barked         1 token\n"
        "                4 / 2 = 2.0",
    ),
    d.ALPHA: Explanation(
        "How much alike the big model and the guesser think: at 1, every guess would be kept.",
        "big model  ▇▇▅▂\n"
        "guesser    ▇▃▅▇\n"
        "in common  ▇▃▅▂   its mean sum is α",
    ),
    d.GAMMA: Explanation(
        "How many tokens are guessed ahead before the big model checks them all at once.",
        "γ 4   the · old · cat · sat ─▸ a check",
    ),
    d.COST: Explanation(
        "What one guess costs, in steps of the big model.",
        "guess  ▇▇\n"
        "step   ▇▇▇▇▇▇▇▇▇▇   c = 0.2",
    ),
    d.NOW: Explanation(
        "How fast the reply grows at this moment.",
        "▂▃▅▆▆▇▆▇▕ now",
    ),
    d.REPLY: Explanation(
        "How fast the reply was written, from its first round to its last.",
        "first ├──── 97 tokens ────┤ last round",
    ),
    d.FIRST: Explanation(
        "How long it took until something was there to read.",
        "sent ├ waiting ┼ reading ┼ round 1 ┤",
    ),
    d.PREDICTED: Explanation(
        "What theory promises, given how alike the two think and what a guess costs.",
        "α ─╮\n"
        "γ ─┼─▸ theorem ─▸ 1.9×\n"
        "c ─╯",
    ),
    d.MEASURED: Explanation(
        "How much faster this reply came than it would have without guesses.",
        "without   ▇▇▇▇▇▇▇▇▇▇  a token\n"
        "with      ▇▇▇▇▇▇      a token   1.67×",
    ),
    d.UNEVEN: Explanation(
        "Guesses that are good in one place and bad in the next win less than evenly good ones.",
        "even     ✓✓✗  ✓✓✗  ✓✓✗\n"
        "uneven   ✓✓✓  ✓✓✓  ✗··",
    ),
    d.WIDER: Explanation(
        "To check several tokens at once takes a little longer than to write one.",
        "1 token    ▇▇▇▇▇▇▇▇\n"
        "5 tokens   ▇▇▇▇▇▇▇▇▇▇",
    ),
    d.OVERHEAD: Explanation(
        "Time that neither guesses nor checks.",
        "draft ▇▇ verify ▇▇▇▇▇▇▇ rest ▇ ◂ this",
    ),
    d.ROUND: Explanation(
        "One guess and one check: the beat in which the reply grows.",
        "├draft┼verify┼rest┤├draft┼verify┼rest┤\n"
        "      round 1            round 2",
    ),
    d.DRAFT: Explanation(
        "The part of a round in which tokens are guessed.",
        "├▇draft▇┼ verify ┼ rest ┤",
    ),
    d.VERIFY: Explanation(
        "The part of a round in which the big model checks the guesses.",
        "├ draft ┼▇verify▇┼ rest ┤",
    ),
    d.REST: Explanation(
        "What is left of a round.",
        "├ draft ┼ verify ┼▇rest▇┤",
    ),
    d.WASTED: Explanation(
        "Guesses that did not make it into the reply.",
        "old ✓   cat ✗   sat ·   2 of 3 wasted",
    ),
    d.DRAFTER: Explanation(
        "The quick guesser: a small model, a trained head, or a search in the text so far.",
        "drafter ─ the old cat ─▸ target",
    ),
    d.TARGET: Explanation(
        "The big model. The reply is what it would have written alone.",
        "the old cat ─▸ target ─▸ the old dog",
    ),
    d.DRAFT_MODEL: Explanation(
        "A smaller relative of the big model, which guesses for it.",
        "small  ▇\n"
        "big    ▇▇▇▇▇▇▇▇▇▇",
    ),
    d.PROPOSED: Explanation(
        "Which of several guessers a token came from.",
        "head    the old ─┐\n"
        "suffix  the old ─┴▸ target ─▸ the old",
    ),
    d.DEVICE: Explanation(
        "Where the arithmetic is done, and how fine its numbers are.",
        "bfloat16   ▇▇     2 bytes for a number\n"
        "float32    ▇▇▇▇   4 bytes",
    ),
    d.SERVER: Explanation(
        "Who else runs the model, and is watched from here.",
        "here ◂── text, counts ── server\n"
        "         no p, no q, no α",
    ),
    d.MEMORY: Explanation(
        "What the models take, and what is set aside to remember chats.",
        "▇▇▇▇▇▇ weights + ▇▇▇ cache",
    ),
    d.PROMPT: Explanation(
        "How much there was to read before the answer; what is remembered need not be read again.",
        "░░░░░░░░░░ reused   ▇▇▇ read now",
    ),
    d.GPU: Explanation(
        "How busy the graphics card is, and how full.",
        "▇▇▇▇▇▇░░░░ 60 %",
    ),
    d.INTERFACE: Explanation(
        "What it costs to watch.",
        "one core  ▇░░░░░░░░░ 6 %",
    ),
    d.P: Explanation(
        "How likely the guessed token is to the big model.",
        "old  ▇▇▇▇▇▇  0.6 ◂ p of “old”\n"
        "big  ▇▇▇     0.3",
    ),
    d.Q: Explanation(
        "How likely it was to the guesser.",
        "old  ▇▇▇▇▇▇▇▇  0.8 ◂ q of “old”",
    ),
    d.CHANCE: Explanation(
        "The odds that the guess is kept: certain if the big model likes it at least as much as the guesser did.",
        "p  ▇▇▇     0.3\n"
        "q  ▇▇▇▇▇▇  0.6   kept half of the time",
    ),
    d.UNIFORM: Explanation(
        "The throw of the die that decides.",
        "0 ├───── u ───┼───────────┤ 1\n"
        "      kept   p/q  refused",
    ),
    d.BETA: Explanation(
        "The odds before it was known which token would be guessed.",
        "p  ▇▇▅▂\n"
        "q  ▇▃▅▇\n"
        "β  ▇▃▅▂   the sum of what both have",
    ),
    d.RESIDUAL: Explanation(
        "What the big model wanted more than the guesser did; a correction is drawn from there.",
        "p      ▇▇▅▂\n"
        "q      ▇▃▅▇\n"
        "p − q   ▄",
    ),
    d.ENTROPY: Explanation(
        "How undecided a model is.",
        "sure       ▇▁▁▁   H 0.2\n"
        "undecided  ▄▄▄▄   H 1.4",
    ),
    d.POSITION: Explanation(
        "Which token this is, counted from the first one of the chat.",
        "0  1  2  …  41 ◂",
    ),
    d.ENDED: Explanation(
        "When the round was done, by the reply's own clock.",
        "0 s ├─────────────●──┤ end",
    ),
}  # fmt: skip
