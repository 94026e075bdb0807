"""Look-ahead positions along a text: what rides is read by the target, so the rounds are those that generation had."""

from __future__ import annotations

from pathlib import Path

import torch

from specchat.engine import Engine, EngineConfig, Message, Request, Round, TraceWriter
from specchat.engine.models.load import load_model
from specchat.engine.progress import ignore_progress
from specchat.engine.research.pass_drafter import save_look_ahead
from specchat.engine.tools.evaluate import EvaluateOptions, evaluate
from tests.tiny_model import write_tiny_model

GAMMA = 3


def test_the_rounds_are_those_of_generation(tmp_path: Path) -> None:
    target = write_tiny_model(tmp_path / "tiny", max_position_embeddings=512, eos_token_id=3)
    model = load_model(target, torch.device("cpu"), torch.float32, ignore_progress)
    rows = model.model.get_input_embeddings().weight[100 : 100 + GAMMA]
    save_look_ahead(tmp_path / "ahead", rows, "tiny", model.fingerprint, {})
    config = EngineConfig(str(target), tmp_path, draft=str(tmp_path / "ahead"), dtype="float32", context=256)
    engine = Engine(config)
    engine.start()
    engine.wait_ready(60)
    messages = (Message("user", "the quick brown fox"),)
    request = Request("r", messages=messages, drafter="pass", gamma=GAMMA, max_tokens=60)
    events = list(engine.stream(request))
    engine.close()
    writer = TraceWriter(tmp_path / "text.jsonl")
    for record in (request, *events):
        writer.write(record)
    writer.close()
    rounds = [event for event in events if isinstance(event, Round)]
    options = EvaluateOptions(
        tmp_path, str(target), (tmp_path / "text.jsonl",), str(tmp_path / "ahead"), ("pass",), (GAMMA,), dtype="float32"
    )
    found = evaluate(options, lambda _line: None)
    (courses,) = found.courses.values()
    assert courses[0].rounds == len(rounds)
    assert sum(courses[0].accepted.values()) == sum(record.accepted for record in rounds)
    assert courses[0].tested.total() == sum(record.tested for record in rounds) > 0
