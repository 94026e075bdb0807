"""Labels, explanations and definitions of every figure on screen."""

from __future__ import annotations

from typing import NamedTuple

from specchat.engine import WINDOW_S

WIDEST = 38
"""Cells of the widest picture."""


class Figure(NamedTuple):
    """A figure: its label, its definition, and an explanation for beginners."""

    label: str
    definition: str
    sentence: str
    picture: str


ACCEPTANCE = Figure(
    "accepted / tested",
    "drafted tokens that the target accepted / drafted tokens that it tested. Tokens after a rejection are never "
    "tested. Several candidates for one position count as one.",
    "How often the target accepts a drafted token.",
    "drafted   the   old   cat   sat\n"
    "tested     ✓     ✓     ✗     ·\n"
    "      2 accepted of 3 tested: 67 %",
)  # fmt: skip
THINKING = Figure(
    "thinking", "accepted / tested of the draft positions inside the reply's thinking, including its markers.",
    "How often drafts are accepted while the model thinks; for replies that begin with thinking.",
    "<think> ▇▇▇▇▇▇▇▇ </think> answer",
)  # fmt: skip
ANSWER = Figure(
    "answer", "accepted / tested after the thinking.",
    "How often drafts are accepted after the thinking, in the answer itself.",
    "<think> … </think> ▇▇▇▇▇▇▇▇",
)  # fmt: skip
DRAFTED = Figure(
    "drafted",
    "all proposed tokens. Accepted ones are in the reply; rejected ones were tested; discarded ones were not tested: "
    "they followed a rejected one, or were further candidates for a position.",
    "What happened to all drafted tokens; the parts add up to the whole.",
    "4 drafted: 2 accepted    the, old\n"
    "           1 rejected    cat\n"
    "           1 discarded   sat",
)  # fmt: skip
POSITIONS = Figure(
    "by draft position", "accepted / tested at the first, second, … token of a draft.",
    "The first token of a draft is the easiest; each further one depends on those before it.",
    "1st token  ▇▇▇▇▇▇▇▇▇  90 %\n"
    "2nd token  ▇▇▇▇▇▇     62 %\n"
    "3rd token  ▇▇▇        31 %",
)  # fmt: skip
TAU = Figure(
    "τ", "tokens per round: tokens emitted per pass of the target, including the correction or bonus.",
    "How many tokens the reply gains with each round; without drafts it is one.",
    "round 1   the old dog    3 tokens\n"
    "round 2   barked         1 token\n"
    "                 4 / 2 = 2.0",
)  # fmt: skip
ALPHA = Figure(
    "α",
    "mean over tested tokens of β: the probability that a token drawn from q is accepted (Leviathan et al. 2023, "
    "Corollary 3.6).",
    "How similar the target and the drafter are: at 1, every draft is accepted.",
    "target     ▇▇▅▂\n"
    "drafter    ▇▃▅▇\n"
    "in common  ▇▃▅▂   its mean sum is α",
)  # fmt: skip
GAMMA = Figure(
    "γ", "requested draft length, in positions. The drafter may propose fewer, or several tokens per position.",
    "How many tokens are drafted before the target verifies them all at once.",
    "γ 4   the · old · cat · sat ─▸ verify",
)  # fmt: skip
COST = Figure(
    "c", "draft time per position / time of a plain pass of the target.",
    "What one drafted token costs, in passes of the target.",
    "draft  ▇▇\n"
    "pass   ▇▇▇▇▇▇▇▇▇▇   c = 0.2",
)  # fmt: skip
SERVER = Figure(
    "server", "where the model runs. Figures of its drafts that it does not report are unknown.",
    "The program that runs the model and is observed from here.",
    "here ◂── text, counts ── server\n"
    "         no p, no q, no α",
)  # fmt: skip
NOW = Figure(
    "tok/s now", f"tokens emitted in the last {WINDOW_S:g} s of rounds, per second; the line is its history.",
    "How fast the reply grows at this moment.",
    "▂▃▅▆▆▇▆▇▕ now",
)  # fmt: skip
REPLY = Figure(
    "reply", "tokens of the reply / time from the start of its first round to the end of its last.",
    "How fast the reply was written, from its first round to its last.",
    "first ├──── 97 tokens ────┤ last round",
)  # fmt: skip
FIRST = Figure(
    "first token", "from sending to the end of the first round, including waiting and reading the prompt.",
    "How long it took until the first text arrived.",
    "sent ├ waiting ┼ reading ┼ round 1 ┤",
)  # fmt: skip
PREDICTED = Figure(
    "predicted",
    "speedup by Theorem 3.8, (1−α^(γ+1)) / ((1−α)(γc+1)), with the measured α and c, over the draft lengths of the "
    "reply.",
    "The speedup in theory, given how similar both models are and what a draft costs.",
    "α ─╮\n"
    "γ ─┼─▸ theorem ─▸ 1.9×\n"
    "c ─╯",
)  # fmt: skip
MEASURED = Figure(
    "measured",
    "time per token of plain rounds / time per token of this reply's rounds, ± its standard error; shown once that is "
    "below 15 %. Plain rounds are the last 15 without drafts in batches of the same size, and plain passes that are "
    "timed now and then between rounds with drafts; before there are three, the passes of the warm-up.",
    "How much faster this reply was than it would have been without drafts.",
    "without   ▇▇▇▇▇▇▇▇▇▇  a token\n"
    "with      ▇▇▇▇▇▇      a token   1.67×",
)  # fmt: skip
UNEVEN = Figure(
    "α uneven",
    "loss of measured speedup because acceptance differs from token to token: tokens emitted / tokens expected.",
    "Drafts that are good in one place and bad in the next gain less than evenly good ones.",
    "even     ✓✓✗  ✓✓✗  ✓✓✗\n"
    "uneven   ✓✓✓  ✓✓✓  ✗··",
)  # fmt: skip
WIDER = Figure(
    "wider passes",
    "loss of measured speedup because a pass over a draft, and over a longer cache, takes longer than a plain pass.",
    "Verifying several tokens at once takes a little longer than writing one.",
    "1 token    ▇▇▇▇▇▇▇▇\n"
    "5 tokens   ▇▇▇▇▇▇▇▇▇▇",
)  # fmt: skip
OVERHEAD = Figure(
    "overhead", "loss of measured speedup to the rest of each round: neither draft nor verification.",
    "Time that neither drafts nor verifies.",
    "draft ▇▇ verify ▇▇▇▇▇▇▇ rest ▇ ◂ this",
)  # fmt: skip
ROUND = Figure(
    "round", "one draft and one verification; one pass of the target.",
    "One draft and one verification: the step in which the reply grows.",
    "├draft┼verify┼rest┤├draft┼verify┼rest┤\n"
    "      round 1            round 2",
)  # fmt: skip
DRAFT = Figure(
    "draft", "time of a round until its tokens are proposed; for the whole batch.",
    "The part of a round in which tokens are drafted.",
    "├▇draft▇┼ verify ┼ rest ┤",
)  # fmt: skip
VERIFY = Figure(
    "verify", "time of the target's pass and of the acceptance test; for the whole batch.",
    "The part of a round in which the target verifies the draft.",
    "├ draft ┼▇verify▇┼ rest ┤",
)  # fmt: skip
REST = Figure(
    "rest", "time of a round that is neither draft nor verification.",
    "The remaining time of a round.",
    "├ draft ┼ verify ┼▇rest▇┤",
)  # fmt: skip
WASTED = Figure(
    "wasted",
    "drafted tokens that are not part of the reply: rejected or discarded, or candidates besides those on screen.",
    "Drafted tokens that did not make it into the reply.",
    "old ✓   cat ✗   sat ·   2 of 3 wasted",
)  # fmt: skip
DRAFTER = Figure(
    "drafter", "proposes tokens.",
    "The fast proposer: a small model, a trained head, or a search in the text so far.",
    "drafter ─ the old cat ─▸ target",
)  # fmt: skip
TARGET = Figure(
    "target", "the model that writes the reply; it verifies every token.",
    "The large model. The reply is the same as it would be without drafts.",
    "the old cat ─▸ target ─▸ the old dog",
)  # fmt: skip
DRAFT_MODEL = Figure(
    "draft model", "the model that proposes tokens, where one was loaded.",
    "A smaller relative of the target, which drafts for it.",
    "small  ▇\n"
    "large  ▇▇▇▇▇▇▇▇▇▇",
)  # fmt: skip
PROPOSED = Figure(
    "proposed by",
    "the drafts that contained a token, for drafters that combine several. For each the panel shows accepted / tested "
    "over the tested positions for which it had a token after the accepted ones.",
    "Which of several drafters a token came from.",
    "head    the old ─┐\n"
    "suffix  the old ─┴▸ target ─▸ the old",
)  # fmt: skip
DEVICE = Figure(
    "device", "where the models run, and their number format.",
    "Where the models compute, and how precise their numbers are.",
    "bfloat16   ▇▇     2 bytes for a number\n"
    "float32    ▇▇▇▇   4 bytes",
)  # fmt: skip
MEMORY = Figure(
    "memory", "weights of the models + the cache of all slots, each for a fixed number of tokens.",
    "Memory of the models, and of the cache for chats.",
    "▇▇▇▇▇▇ weights + ▇▇▇ cache",
)  # fmt: skip
PROMPT = Figure(
    "prompt", "tokens of the whole conversation as the model reads it; reused ones were already in its cache.",
    "How much text was read before the answer; cached text is not read again.",
    "░░░░░░░░░░ reused   ▇▇▇ read now",
)  # fmt: skip
GPU = Figure(
    "GPU", "share of the last sampling period in which the GPU was busy, and its memory in use, by NVML.",
    "How busy the graphics card is, and how full.",
    "▇▇▇▇▇▇░░░░ 60 %",
)  # fmt: skip
INTERFACE = Figure(
    "interface", "processor time of the interface's thread / time, over the last second.",
    "What the display itself costs.",
    "one core  ▇░░░░░░░░░ 6 %",
)  # fmt: skip
P = Figure(
    "p",
    "the target's probability of the drafted token, after temperature, top-k, top-p, min-p and penalties, and after "
    "the rejection of earlier candidates for the same position.",
    "How likely the drafted token is to the target.",
    "old  ▇▇▇▇▇▇  0.6 ◂ p of “old”\n"
    "big  ▇▇▇     0.3",
)  # fmt: skip
Q = Figure(
    "q", "the drafter's probability of the token, after the same; q = 1 for a drafter without probabilities.",
    "How likely it was to the drafter.",
    "old  ▇▇▇▇▇▇▇▇  0.8 ◂ q of “old”",
)  # fmt: skip
CHANCE = Figure(
    "min(1, p/q)", "the probability that the drafted token is accepted.",
    "The probability of acceptance: 1 if the token is at least as likely to the target as to the drafter.",
    "p  ▇▇▇     0.3\n"
    "q  ▇▇▇▇▇▇  0.6   half are accepted",
)  # fmt: skip
UNIFORM = Figure(
    "u", "the uniform random number between 0 and 1 that decides: accepted if u · q < p.",
    "The random number that decides.",
    "0 ├───── u ───┼───────────┤ 1\n"
    "    accepted p/q rejected",
)  # fmt: skip
BETA = Figure(
    "β",
    "Σ min(p, q) over the vocabulary at this position: the probability of acceptance before the draft was drawn. With "
    "several candidates, the probability that one of them is accepted.",
    "The probability of acceptance before the drafted token was known.",
    "p  ▇▇▅▂\n"
    "q  ▇▃▅▇\n"
    "β  ▇▃▅▂   the sum of what both share",
)  # fmt: skip
RESIDUAL = Figure(
    "residual", "norm(max(0, p − q)): the distribution of the correction, so that the reply follows p.",
    "Where the target is more likely than the drafter; a correction is drawn from it.",
    "p      ▇▇▅▂\n"
    "q      ▇▃▅▇\n"
    "p − q   ▄",
)  # fmt: skip
ENTROPY = Figure(
    "H", "entropy of a distribution in nats: 0 is certain, ln(vocabulary size) is uniform.",
    "How uncertain a model is.",
    "certain    ▇▁▁▁   H 0.2\n"
    "uncertain  ▄▄▄▄   H 1.4",
)  # fmt: skip
POSITION = Figure(
    "position", "index of a token in the context, including the prompt; the first is 0.",
    "Which token this is, counted from the first one of the chat.",
    "0  1  2  …  41 ◂",
)  # fmt: skip
ENDED = Figure(
    "round ended", "time from the start of the reply's first round to the end of this one.",
    "When the round ended, by the reply's own clock.",
    "0 s ├─────────────●──┤ end",
)  # fmt: skip

FIGURES = (
    ACCEPTANCE, THINKING, ANSWER,
    DRAFTED, POSITIONS, TAU, ALPHA, GAMMA, COST, NOW, REPLY, FIRST, PREDICTED, MEASURED, UNEVEN, WIDER,
    OVERHEAD, ROUND, DRAFT, VERIFY, REST, WASTED, DRAFTER, TARGET, DRAFT_MODEL, DEVICE, MEMORY, PROMPT, GPU, INTERFACE,
    SERVER, P, Q, CHANCE, UNIFORM, BETA, RESIDUAL, ENTROPY, PROPOSED, POSITION, ENDED,
)  # fmt: skip
