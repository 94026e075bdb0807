"""A real llama.cpp server, which drafts with the default model for the default model."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from specchat.app.sources.attached import AttachedEngine
from specchat.engine import FinishReason, Message, Outbox, Request, Round, Sampling, models_folder
from tests.app.recorded import replied
from tests.app.sources.servers.recorded import first
from tests.app.sources.servers.test_servers import tokens
from tests.engine.tiny import ended
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.model, pytest.mark.slow]
GAMMA = 4
PROGRAM = """
import sys, xllamacpp as x
p = x.CommonParams()
p.model.path = p.speculative.draft.mparams.path = sys.argv[1]
p.speculative.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
p.speculative.draft.n_max = int(sys.argv[2])
p.n_ctx, p.n_parallel, p.port, p.warmup = 512, 1, 0, False
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = p.speculative.draft.cpuparams.n_threads = 1
server = x.Server(p)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a server, in a separate process."""
    gguf = next(models_folder().glob(".originals/smollm2-135m/*.gguf"), None)
    if gguf is None:
        pytest.skip("the default model's GGUF file is not kept here")
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(gguf), str(GAMMA)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert started.stdout is not None
    address = next(line.strip() for line in started.stdout if line.startswith("http://"))
    yield address
    started.stdin.close()
    started.kill()
    started.wait(PATIENCE_S)


def test_fates_are_known_while_the_reply_streams(url: str) -> None:
    engine = AttachedEngine(url)
    ready = first(engine)
    assert (ready.observed, ready.context, ready.slots) == ("llama.cpp", 512, 1)
    box = Outbox()
    asked = (Message("user", "Name three fruits."),)
    engine.submit(Request("greedy", asked, max_tokens=12), box)
    greedy = ended(box)
    engine.submit(Request("sampled", asked, sampling=Sampling(1.5, seed=1), max_tokens=12), box)
    sampled = ended(box)
    engine.close()
    for events in (greedy, sampled):
        reply = replied(events)
        last = events[-1]
        assert last.reason in (FinishReason.LENGTH, FinishReason.EOS)
        assert reply.metrics.emitted == reply.metrics.totals.tokens
        assert reply.metrics.prompt_tokens == reply.metrics.totals.prompt_tokens
        rounds = [event for event in events if isinstance(event, Round)]
        assert all(record.drafted or record.last is not None for record in rounds)
        assert max(len(record.drafted) for record in rounds) <= GAMMA
    # A draft by the target itself: without chance, it accepts all of it.
    s = replied(greedy).metrics
    assert s.tested == s.accepted > 0
    assert {fate.value for _, fate in tokens(replied(sampled))} & {"rejected", "correction"}
