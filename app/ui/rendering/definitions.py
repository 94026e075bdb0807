"""Labels and definitions of every figure on screen, in one table, so that they cannot differ."""

from __future__ import annotations

from typing import NamedTuple

from specchat.engine import WINDOW_S


class Figure(NamedTuple):
    """A figure's name as it stands beside its value, and what it is."""

    label: str
    definition: str


ACCEPTANCE = Figure(
    "accepted / tested",
    "drafted tokens the target kept / drafted tokens it judged. Tokens behind a rejection are never judged and do not "
    "count as tested. Where several are offered for one position, they count as one.",
)
THINKING = Figure(
    "thinking", "accepted / tested of the draft positions inside of the reply's thinking, markers included."
)
ANSWER = Figure("answer", "accepted / tested behind the thinking.")
POSITIONS = Figure("by draft position", "accepted / tested at the first, second, … token of a draft.")
TAU = Figure("τ", "mean emitted length: tokens emitted per pass of the target; the correction or bonus is one of them.")
ALPHA = Figure(
    "α",
    "mean over tested tokens of β: the chance that a token drawn from q is accepted (Leviathan et al. 2023, Corollary "
    "3.6).",
)
GAMMA = Figure(
    "γ",
    "draft length asked for, round by round: positions. The drafter may offer less, or several tokens for a position.",
)
COST = Figure("c", "time spent drafting per position drafted for / time of a plain pass of the target.")
SERVER = Figure("server", "where the model runs: what it does not say of its drafts is not known here.")
NOW = Figure("tok/s now", f"tokens emitted in the last {WINDOW_S:g} s of rounds, per second; the line is its course.")
REPLY = Figure("reply", "tokens of the reply / time from the start of its first round to the end of its last.")
FIRST = Figure("first token", "from sending to the end of the first round; waiting and reading the prompt included.")
PREDICTED = Figure(
    "predicted",
    "speedup by Theorem 3.8, (1−α^(γ+1)) / ((1−α)(γc+1)), with α and c as measured, over the draft lengths that were "
    "run.",
)
MEASURED = Figure(
    "measured",
    "time per token of plain rounds / time per token of this reply's rounds, ± its standard error; shown once that is "
    "below 15 %. Plain rounds are the last 15 in which nobody drafted, in batches of the same size, and plain passes "
    "that are timed now and then beside rounds that draft; before three of them, the passes of the warm-up.",
)
UNEVEN = Figure(
    "α uneven",
    "what the measured speedup loses because acceptance differs from token to token: tokens emitted / tokens expected.",
)
WIDER = Figure(
    "wider passes",
    "what it loses because a pass over a draft, and over a longer cache, takes longer than a plain pass.",
)
OVERHEAD = Figure("overhead", "what it loses to the rest of each round: neither draft nor verification.")
ROUND = Figure("round", "one draft and one verification; one pass of the target.")
DRAFT = Figure("draft", "time of a round until its tokens are proposed; the whole batch's.")
VERIFY = Figure("verify", "time of the target's pass and of the acceptance; the whole batch's.")
REST = Figure("rest", "everything of a round that is neither draft nor verification.")
WASTED = Figure(
    "wasted", "drafted tokens that are no part of the reply: rejected or discarded, or offered beside those on screen."
)
DRAFTED = Figure(
    "drafted",
    "every token that was proposed. Kept ones are in the reply; refused ones were judged; unused ones never were: they "
    "stood behind a refused one, or were offered beside the others.",
)
DRAFTER = Figure("drafter", "what proposes tokens.")
TARGET = Figure("target", "the model whose reply this is; every token is judged by it.")
DRAFT_MODEL = Figure("draft model", "the model that proposes tokens, where one was loaded.")
PROPOSED = Figure(
    "proposed by",
    "the drafts that brought a token, where a drafter puts several together. Of each the panel has accepted / tested: "
    "at the tested positions that it had a token for behind what was kept, how often that token was kept.",
)
DEVICE = Figure("device", "where the models run, and the type of their numbers.")
MEMORY = Figure("memory", "weights of the models + the cache for all slots, each of which holds so many tokens.")
PROMPT = Figure(
    "prompt", "tokens of the whole conversation as the model reads it; reused ones were in its cache already."
)
GPU = Figure("GPU", "share of the last sampling period in which the GPU was busy, and its memory in use, by NVML.")
INTERFACE = Figure(
    "interface", "processor time of the interface's thread / time, over the last second: what watching costs."
)
P = Figure(
    "p",
    "the target's probability of the drafted token, after temperature, top-k, top-p, min-p and penalties; where others "
    "were refused for the same position before it, as they left it.",
)
Q = Figure("q", "the drafter's probability of it, after the same; a drafter without doubt has q = 1.")
CHANCE = Figure("min(1, p/q)", "the probability with which the drafted token is accepted.")
UNIFORM = Figure("u", "the uniform draw between 0 and 1 that decides: accepted where u · q < p.")
BETA = Figure(
    "β",
    "Σ min(p, q) over the vocabulary at this position: the chance before the draft was drawn. Where several tokens "
    "were offered, the chance that one of them is kept.",
)
RESIDUAL = Figure("residual", "norm(max(0, p − q)): what the correction is drawn from, so that the reply follows p.")
ENTROPY = Figure("H", "entropy of a distribution in nats: 0 is certain, ln of the vocabulary's size knows nothing.")
POSITION = Figure("position", "place of a token in the context, prompt included; the first is 0.")
ENDED = Figure("round ended", "time from the start of the reply's first round to the end of this one.")

FIGURES = (
    ACCEPTANCE, THINKING, ANSWER,
    DRAFTED, POSITIONS, TAU, ALPHA, GAMMA, COST, NOW, REPLY, FIRST, PREDICTED, MEASURED, UNEVEN, WIDER,
    OVERHEAD, ROUND, DRAFT, VERIFY, REST, WASTED, DRAFTER, TARGET, DRAFT_MODEL, DEVICE, MEMORY, PROMPT, GPU, INTERFACE,
    SERVER, P, Q, CHANCE, UNIFORM, BETA, RESIDUAL, ENTROPY, PROPOSED, POSITION, ENDED,
)  # fmt: skip
