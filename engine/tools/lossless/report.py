"""Report of the lossless checks, as JSON and as plain text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from specchat.engine.request import gamma_text
from specchat.engine.tools.lossless.greedy import Divergence, GreedyCheck
from specchat.engine.tools.lossless.quantization import KL_LIMIT, PERPLEXITY_LIMIT, Fidelity
from specchat.engine.tools.lossless.sampled import FALSE_ALARM, SampledCheck

VERSION = 1
"""Version of the JSON object."""

_LIMITS = f"""\
What this shows: with temperature 0, whether each drafter leaves the reply as it is without drafts, and whether every
token emitted is the target's own first choice as transformers computes it, up to rounding (of quantised weights: as
the kernels compute it without drafts, bit by bit); with sampling, whether two tokens in a row are drawn with the
target's probabilities, drafts accepted and corrected included.
What it cannot show: that no other prompt differs. A sample bounds an error, it does not exclude it: an error far
smaller than 1 / sqrt(samples) goes unseen. With nothing wrong, one run in {1 / FALSE_ALARM:.0f} still fails."""


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """Result of `specchat verify`."""

    command: str
    target: str
    draft: str | None
    device: str
    dtype: str
    gamma: int | None
    temperature: float
    """Temperature of the sampled checks."""
    greedy: tuple[GreedyCheck, ...]
    """Plain decoding first: it cannot diverge from itself, but its tokens are checked too."""
    sampled: tuple[SampledCheck, ...]
    notes: tuple[str, ...]
    fidelity: Fidelity | None = None
    """Of quantised weights; None where they are not."""
    stopped: bool = False
    """Whether it was stopped before everything was checked."""

    @property
    def passed(self) -> bool:
        """Whether everything is within its stated tolerance."""
        lossless = all(check.passed for check in self.greedy) and all(check.passed for check in self.sampled)
        return lossless and (self.fidelity is None or self.fidelity.passed)

    def json(self) -> str:
        """The whole report as one JSON object."""
        whole: dict[str, Any] = {"specchat_verify": VERSION, "passed": self.passed, **asdict(self)}
        whole["greedy"] = [{"passed": check.passed, **asdict(check)} for check in self.greedy]
        whole["sampled"] = [{"passed": check.passed, **asdict(check)} for check in self.sampled]
        return json.dumps(whole, indent=1, ensure_ascii=False)

    def text(self, name: Callable[[int], str]) -> str:
        """The report as text.

        Args:
            name: gives the text of a token id.
        """
        draft = f", draft {self.draft}" if self.draft else ""
        head = f"{self.target}{draft} in {self.dtype} on {self.device}, gamma {gamma_text(self.gamma)}"
        greedy = [line for check in self.greedy for line in _greedy(check, name)]
        sampled = [_sampled(check) for check in self.sampled]
        verdict = "PASSED: nothing differs beyond the stated tolerance."
        if self.stopped:
            verdict = "STOPPED before the end: nothing differs in what is listed here."
        if not self.passed:
            verdict = "FAILED: the output differs by more than rounding or chance explains."
        parts = [
            head,
            "\n".join(["Greedy, token by token:", *greedy]),
            *(
                ["\n".join([f"Sampled at temperature {self.temperature:g}, two tokens in a row:", *sampled])]
                if sampled
                else []
            ),
            *([_fidelity(self.fidelity)] if self.fidelity else []),
            *self.notes,
            verdict,
            _LIMITS,
        ]
        return "\n\n".join(parts)


def _greedy(check: GreedyCheck, name: Callable[[int], str]) -> list[str]:
    same = check.prompts - len(check.divergences)
    compared = "" if check.drafter == "none" else f", {same} of {check.prompts} replies the same as without drafts"
    lines = [
        f"  {check.drafter}: {check.tokens} tokens{compared}; the furthest from the target's first choice fell short "
        f"by {check.worst_deficit:.4f} logits (tolerance {check.tolerance:g}){_mark(check.passed)}"
    ]
    return [*lines, *(f"    {_divergence(each, name)}" for each in check.divergences)]


def _divergence(each: Divergence, name: Callable[[int], str]) -> str:
    plain, other = (repr(name(token)) if token is not None else "the end" for token in (each.plain, each.speculative))
    return (
        f"{each.prompt}: {other} instead of {plain} after {each.position} tokens, "
        f"where the target's first two choices are {each.top2_gap:.4f} logits apart"
    )


def _sampled(check: SampledCheck) -> str:
    return (
        f"  {check.drafter}, {check.context}: {check.samples} samples, {check.accepted} of {check.tested} tested drafts"
        f" accepted, chi-square {check.result.statistic:.1f} with {check.result.degrees} degrees of freedom, "
        f"p = {check.result.p_value:.3g} (alarm below {check.threshold:.2g}){_mark(check.passed)}"
    )


def _fidelity(found: Fidelity) -> str:
    return (
        f"{found.format} weights against float32 computation with the same weights, {found.tokens} tokens:\n"
        f"  KL divergence {found.kl:.4f} nats per token (limit {KL_LIMIT:g}), the same first choice at "
        f"{found.agreement:.1%}, perplexity {found.perplexity:.3f} and {found.reference_perplexity:.3f} "
        f"(limit {PERPLEXITY_LIMIT:.0%} apart){_mark(found.passed)}"
    )


def _mark(passed: bool) -> str:
    return "" if passed else "  <-- differs"
