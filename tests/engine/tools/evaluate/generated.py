"""Replies of tiny models, as traces to evaluate on, with the rounds that they took."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from specchat.engine import Engine, EngineConfig, Message, Record, Request, Round, Sampling, TraceWriter
from specchat.engine.tools.evaluate import EvaluateOptions, evaluate
from specchat.engine.tools.evaluate.evaluation import Evaluation

GAMMA = 3


class Generated:
    """A tiny target with a draft, its replies as traces, and the rounds of each drafter."""

    def __init__(self, target: Path, draft: Path, folder: Path) -> None:
        self.target, self.draft, self.folder = target, draft, folder
        self.files: list[Path] = []
        self.rounds: dict[str, list[Round]] = {}

    def generate(self, drafters: Iterable[str], prompts: Iterable[tuple[str, Sampling]], max_tokens: int = 60) -> None:
        """Reply to each prompt with each drafter; the traces are those of the first drafter."""
        config = EngineConfig(str(self.target), self.folder, draft=str(self.draft), dtype="float32", context=256)
        engine = Engine(config)
        engine.start()
        engine.wait_ready(60)
        prompts = list(prompts)
        for drafter in drafters:
            self.rounds[drafter] = []
            for number, (prompt, sampling) in enumerate(prompts):
                request = Request(
                    f"{drafter}{number}", (Message("user", prompt),), drafter=drafter, gamma=GAMMA,
                    max_tokens=max_tokens, sampling=sampling,
                )  # fmt: skip
                events = list(engine.stream(request))
                self.rounds[drafter] += [event for event in events if isinstance(event, Round)]
                if len(self.rounds) == 1:
                    self._trace(self.folder / f"text{number}.jsonl", request, *events)
        engine.close()

    def _trace(self, file: Path, *records: Record) -> None:
        writer = TraceWriter(file)
        for record in records:
            writer.write(record)
        writer.close()
        self.files.append(file)

    def evaluate(self, **options: object) -> Evaluation:
        given = {"files": tuple(self.files), "gammas": (GAMMA,), "draft": str(self.draft), "dtype": "float32"} | options
        return evaluate(EvaluateOptions(self.folder, str(self.target), **given), lambda _line: None)  # type: ignore[arg-type]
