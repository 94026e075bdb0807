"""Report of the lossless checks, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from specchat.engine.request import gamma_text
from specchat.engine.tools.lossless.checks import (
    FALSE_ALARM,
    KL_LIMIT,
    PERPLEXITY_LIMIT,
    Divergence,
    Fidelity,
    GreedyCheck,
    SampledCheck,
)
from specchat.engine.tools.report import Columns, Table, json_report, paragraphs
from specchat.engine.tools.runner import BASELINE

_LIMITS = f"""\
What this shows: with temperature 0, whether each drafter leaves the reply as it is without drafts, and whether every
token emitted is the target's own first choice as transformers computes it, up to rounding (of quantised weights: as
the kernels compute it without drafts, bit by bit); the deficit is how far its logit was below the largest. With
sampling, whether two tokens in a row are drawn with the target's probabilities, accepted drafts and corrections
included; p is the probability of such a sample if they are.
What it cannot show: that no other prompt differs. A sample bounds an error, it does not exclude it: an error far
smaller than 1 / sqrt(samples) goes unseen. With nothing wrong, one run in {1 / FALSE_ALARM:.0f} still fails."""


_GREEDY: Columns = {
    "drafter": lambda check: check.drafter,
    "tokens": lambda check: str(check.tokens),
    "replies as without drafts": lambda check: _same(check),
    "largest deficit, logits": lambda check: f"{check.worst_deficit:.4f}",
    "tolerance": lambda check: f"{check.tolerance:g}",
    "": lambda check: _mark(check.passed),
}
_SAMPLED: Columns = {
    "drafter": lambda check: check.drafter,
    "place": lambda check: check.context,
    "samples": lambda check: str(check.samples),
    "accepted / tested": lambda check: f"{check.accepted} / {check.tested}",
    "chi-square": lambda check: f"{check.result.statistic:.1f}",
    "degrees": lambda check: str(check.result.degrees),
    "p": lambda check: f"{check.result.p_value:.3g}",
    "alarm below": lambda check: f"{check.threshold:.2g}",
    "": lambda check: _mark(check.passed),
}


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """Result of `specchat verify`."""

    about: dict[str, Any]
    """Fields of the JSON report: command, target, draft, device, dtype, gamma and temperature of the sampled checks."""
    greedy: tuple[GreedyCheck, ...]
    """Plain decoding first: it cannot diverge from itself, but its tokens are checked too."""
    sampled: tuple[SampledCheck, ...]
    notes: tuple[str, ...]
    fidelity: Fidelity | None
    """Fidelity of quantised weights; None where the weights are not quantised."""
    stopped: bool
    """Whether it was stopped before everything was checked."""
    decode: Callable[[list[int]], str]
    """Gives the text of token ids."""

    @property
    def passed(self) -> bool:
        """Whether everything is within its stated tolerance."""
        lossless = all(check.passed for check in self.greedy) and all(check.passed for check in self.sampled)
        return lossless and (self.fidelity is None or self.fidelity.passed)

    def json(self) -> str:
        """The whole report as one JSON object."""
        figures: dict[str, Any] = {"passed": self.passed, **self.about}
        for name, checks in (("greedy", self.greedy), ("sampled", self.sampled)):
            figures[name] = [{"passed": check.passed, **asdict(check)} for check in checks]
        fidelity = asdict(self.fidelity) if self.fidelity else None
        return json_report("verify", {**figures, "notes": self.notes, "fidelity": fidelity, "stopped": self.stopped})

    def text(self) -> str:
        """The report as tables."""
        about = self.about
        draft = f", draft {about['draft']}" if about["draft"] else ""
        verdict = "PASSED: nothing differs beyond the stated tolerance."
        if self.stopped:
            verdict = "STOPPED before the end: nothing differs in what is listed here."
        if not self.passed:
            verdict = "FAILED: the output differs by more than rounding or chance explains."
        title = f"Sampled at temperature {about['temperature']:g}, two tokens in a row"
        return paragraphs(
            f"{about['target']}{draft} in {about['dtype']} on {about['device']}, gamma {gamma_text(about['gamma'])}",
            Table.of(self.greedy, _GREEDY, "Greedy, token by token").text(),
            "\n".join(self._divergence(check.drafter, each) for check in self.greedy for each in check.divergences),
            Table.of(self.sampled, _SAMPLED, title, names=2).text() if self.sampled else "",
            _fidelity(self.fidelity) if self.fidelity else "",
            *self.notes,
            verdict,
            _LIMITS,
        )

    def _divergence(self, drafter: str, each: Divergence) -> str:
        tokens = (each.plain, each.speculative)
        plain, other = (repr(self.decode([token])) if token is not None else "the end" for token in tokens)
        return (
            f"{drafter}, {each.prompt}: {other} instead of {plain} after {each.position} tokens, "
            f"where the target's first two choices are {each.top2_gap:.4f} logits apart"
        )


def _same(check: GreedyCheck) -> str:
    """Number of replies that are equal to the replies without drafts."""
    same = f"{check.prompts - len(check.divergences)} of {check.prompts}"
    return "-" if check.drafter == BASELINE else same


def _fidelity(found: Fidelity) -> str:
    return (
        f"{found.format} weights against float32 computation with the same weights, {found.tokens} tokens:\n"
        f"  KL divergence {found.kl:.4f} nats per token (limit {KL_LIMIT:g}), the same first choice at "
        f"{found.agreement:.1%}, perplexity {found.perplexity:.3f} and {found.reference_perplexity:.3f} "
        f"(limit {PERPLEXITY_LIMIT:.0%} apart) {_mark(found.passed)}"
    ).rstrip()


def _mark(passed: bool) -> str:
    return "" if passed else "<-- differs"
