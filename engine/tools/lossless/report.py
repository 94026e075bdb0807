"""Report of the lossless checks, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from specchat.engine.request import gamma_text
from specchat.engine.tools.lossless.checks import FALSE_ALARM, Divergence, GreedyCheck, SampledCheck
from specchat.engine.tools.lossless.reference import KL_LIMIT, PERPLEXITY_LIMIT, Fidelity
from specchat.engine.tools.report import Table, json_report, paragraphs
from specchat.engine.tools.runner import BASELINE

_LIMITS = f"""\
What this shows: with temperature 0, whether each drafter leaves the reply as it is without drafts, and whether every
token emitted is the target's own first choice as transformers computes it, up to rounding (of quantised weights: as
the kernels compute it without drafts, bit by bit); the deficit is how far its logit was below the largest. With
sampling, whether two tokens in a row are drawn with the target's probabilities, accepted drafts and corrections
included; p is the probability of such a sample if they are.
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
    fidelity: Fidelity | None
    """Of quantised weights; None where the weights are not quantised."""
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
        checks = {
            name: [{"passed": check.passed, **asdict(check)} for check in each]
            for name, each in (("greedy", self.greedy), ("sampled", self.sampled))
        }
        figures = {"passed": self.passed, **asdict(replace(self, decode=str)), **checks}  # a tokenizer cannot be copied
        del figures["decode"]
        return json_report("verify", figures)

    def text(self) -> str:
        """The report as tables."""
        draft = f", draft {self.draft}" if self.draft else ""
        verdict = "PASSED: nothing differs beyond the stated tolerance."
        if self.stopped:
            verdict = "STOPPED before the end: nothing differs in what is listed here."
        if not self.passed:
            verdict = "FAILED: the output differs by more than rounding or chance explains."
        return paragraphs(
            f"{self.target}{draft} in {self.dtype} on {self.device}, gamma {gamma_text(self.gamma)}",
            self._greedy_table(),
            "\n".join(self._divergence(check.drafter, each) for check in self.greedy for each in check.divergences),
            self._sampled_table(),
            _fidelity(self.fidelity) if self.fidelity else "",
            *self.notes,
            verdict,
            _LIMITS,
        )

    def _greedy_table(self) -> str:
        header = ("drafter", "tokens", "replies as without drafts", "largest deficit, logits", "tolerance", "")
        rows = [
            (
                check.drafter,
                str(check.tokens),
                "-" if check.drafter == BASELINE else f"{check.prompts - len(check.divergences)} of {check.prompts}",
                f"{check.worst_deficit:.4f}",
                f"{check.tolerance:g}",
                _mark(check.passed),
            )
            for check in self.greedy
        ]
        return Table(header, rows, "Greedy, token by token").text()

    def _sampled_table(self) -> str:
        if not self.sampled:
            return ""
        header = ("drafter", "place", "samples", "accepted / tested", "chi-square", "degrees", "p", "alarm below", "")
        rows = [
            (
                check.drafter,
                check.context,
                str(check.samples),
                f"{check.accepted} / {check.tested}",
                f"{check.result.statistic:.1f}",
                str(check.result.degrees),
                f"{check.result.p_value:.3g}",
                f"{check.threshold:.2g}",
                _mark(check.passed),
            )
            for check in self.sampled
        ]
        return Table(header, rows, f"Sampled at temperature {self.temperature:g}, two tokens in a row", names=2).text()

    def _divergence(self, drafter: str, each: Divergence) -> str:
        tokens = (each.plain, each.speculative)
        plain, other = (repr(self.decode([token])) if token is not None else "the end" for token in tokens)
        return (
            f"{drafter}, {each.prompt}: {other} instead of {plain} after {each.position} tokens, "
            f"where the target's first two choices are {each.top2_gap:.4f} logits apart"
        )


def _fidelity(found: Fidelity) -> str:
    return (
        f"{found.format} weights against float32 computation with the same weights, {found.tokens} tokens:\n"
        f"  KL divergence {found.kl:.4f} nats per token (limit {KL_LIMIT:g}), the same first choice at "
        f"{found.agreement:.1%}, perplexity {found.perplexity:.3f} and {found.reference_perplexity:.3f} "
        f"(limit {PERPLEXITY_LIMIT:.0%} apart) {_mark(found.passed)}"
    ).rstrip()


def _mark(passed: bool) -> str:
    return "" if passed else "<-- differs"
