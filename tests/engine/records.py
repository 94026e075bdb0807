"""Records for tests of what reads them: examples of every kind, and hypothesis strategies for all of them."""

from dataclasses import replace

from hypothesis import strategies as st

from specchat.engine import Died, Given, Loading, Measured, Notice, Record, Speedup, Step, Totals
from specchat.engine.events import Admitted, Finished, FinishReason, Prefilled, Ready
from specchat.engine.request import Message, MessagePart, PartKind, Request, Tool
from specchat.engine.round import Call, Candidate, Detail, Fate, Proposer, Round
from specchat.engine.settings import Sampling

ASKED = Message("user", "What is at sea?")
CALLED = Message("assistant", parts=(MessagePart(PartKind.CALL, '{"at": "sea"}', "look", "c1"),))
FOUND = Message("tool", parts=(MessagePart(PartKind.RESULT, "a ship", "look", "c1"),))
LAST_FATES = (Fate.CORRECTION, Fate.BONUS, Fate.PLAIN)
ENTRY = Candidate(7, " the", 0.5)
DETAIL = Detail((ENTRY, Candidate(8, "\n", 0.25)), (ENTRY,), (), 1.5, 0.5)


def make_round(
    *,
    drafted: int = 4,
    accepted: int = 2,
    rejected: bool = False,
    number: int = 0,
    at: float = 1.0,
    seconds: tuple[float, float, float] = (0.001, 0.02, 0.004),
    beta: float = 0.75,
    request_id: str = "r",
) -> Round:
    """A round in which `accepted` of `drafted` tokens were kept; without `rejected` that must be all of them."""
    accepted = accepted if rejected else drafted
    tested = accepted + rejected
    fate = Fate.CORRECTION if rejected else Fate.BONUS if drafted else Fate.PLAIN
    return Round(
        request_id=request_id, number=number, position=10, drafter="ngram" if drafted else "none", gamma=drafted,
        drafted=tuple(range(100, 100 + drafted)), p=(0.5,) * tested, q=(1.0,) * tested, u=(0.25,) * tested,
        beta=(beta,) * tested, accepted=accepted, last=99, last_fate=fate,
        pieces=tuple(f" d{i}" for i in range(drafted)), last_piece=" last", at=at, draft_s=seconds[0],
        verify_s=seconds[1], rest_s=seconds[2], rows=1,
    )  # fmt: skip


def observed_round(step: Step | None, *pieces: str, number: int = 0, at: float = 1.0, seconds: float = 0.1) -> Round:
    """A round that another server tells of; without a step, one token of unknown fate."""
    drafted, accepted = step or Step(0, 0)
    fate = Fate.UNKNOWN if step is None else Fate.CORRECTION if accepted < drafted else Fate.BONUS
    return Round(
        request_id="r", number=number, position=10 + number, drafter="observed", gamma=drafted, drafted=(-1,) * drafted,
        p=(), q=(), u=(), beta=(), accepted=accepted, last=-1, last_fate=fate,
        pieces=(*pieces[:accepted], *[""] * (drafted - accepted)), last_piece=pieces[accepted], at=at, draft_s=0.0,
        verify_s=0.0, rest_s=seconds, rows=1, judged=min(accepted + 1, drafted),
    )  # fmt: skip


EVERY_RECORD: tuple[Record, ...] = (
    Loading("target", "loading smollm2-135m", 0.5, 0.1),
    Loading("import", "starting the engine", None, 0.0),
    Ready("SmolLM2", None, ("ngram", "none"), "cpu", "a processor", "float32", 4096, 4, 1 << 29, 1 << 20, 2.5),
    Request("r", (Message("system", "Be brief."), Message("user", "Hi")), stop=("\n\n",)),
    Request("r", (Message("user", "Hi"), Message("assistant", "", "They greet."), Message("user", "So?"))),
    Request("r", prompt="", sampling=Sampling(0.7, 40, 0.9, 0.05, 7)),
    Request("r", prompt_ids=(1, 2, 3), drafter="none", gamma=0),
    Admitted("r", 12, 5, 0.01, 2.6),
    Request("r", prompt="a", reply_ids=(4, 5), reply_text="and"),
    Admitted("r", 12, 5, 0.01, 2.6, (Given(4, " so"), Given(5, ""))),
    Prefilled("r", 12, 12, 0.1, 2.7),
    make_round(drafted=4, accepted=1, rejected=True),
    make_round(drafted=0),
    replace(make_round(drafted=3), proposers=(Proposer("small", 3, 3), Proposer("other \x1b", 2, 1))),
    replace(make_round(drafted=0), calls=(Call("c1", "look", '{"at": "sea"}'),)),
    Request("r", (ASKED, CALLED, FOUND), tools=(Tool("look", "Looks.", strict=True),), tool_choice="look"),
    Notice(None, "no chat template", 0.2),
    observed_round(Step(3, 1), " kept", " other"),
    observed_round(None, " said"),
    Totals("r", 3.4),
    Totals("r", 3.4, 12, 30, 11, 40, 19, (Step(4, 2), Step(4, 0))),
    Finished("r", FinishReason.STOP, "tail", "", 3.5),
    Died("out of memory", 4.0),
)
MEASURED = (
    Measured("r", Speedup(0.1, 1.9, 1.7, 0.02, 1.0, 0.95, 0.94), 31, 0.0004),
    Measured("r", None, 0, 0.0),
)
"""What is stored with replies besides records of traces."""

texts = st.text(st.characters(), max_size=8)  # half characters included: JSON can hold them, UTF-8 cannot
reals = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 1 << 40)
details = st.builds(
    Detail, *[st.lists(st.builds(Candidate, counts, texts, reals), max_size=2).map(tuple)] * 3, reals, reals
)
proposers = st.tuples(texts, counts, counts).map(lambda each: Proposer(each[0], max(each[1:]), min(each[1:])))


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Any round whose fields do not contradict each other."""
    drafted = draw(st.integers(0, 5))
    accepted = draw(st.integers(0, drafted))
    tested = draw(st.integers(accepted, min(accepted + 1, drafted)))
    last = draw(st.none() | counts)

    def tuples(values: st.SearchStrategy, length: int) -> tuple:
        return draw(st.lists(values, min_size=length, max_size=length).map(tuple))

    return Round(
        request_id=draw(texts), number=draw(counts), position=draw(counts), drafter=draw(texts), gamma=draw(counts),
        drafted=tuples(counts, drafted), p=tuples(reals, tested), q=tuples(reals, tested), u=tuples(reals, tested),
        beta=tuples(reals, tested), accepted=accepted, last=last,
        last_fate=None if last is None else draw(st.sampled_from(LAST_FATES)), pieces=tuples(texts, drafted),
        last_piece=draw(texts), at=draw(reals), draft_s=draw(reals), verify_s=draw(reals), rest_s=draw(reals),
        rows=draw(counts), detail=tuple(draw(st.lists(details, max_size=2))),
        proposers=tuple(draw(st.lists(proposers, max_size=2))),
    )  # fmt: skip


samplings = st.builds(
    Sampling,
    st.floats(0, 10),
    counts,
    st.floats(0, 1, exclude_min=True),
    st.floats(0, 1, exclude_max=True),
    st.none() | st.integers(),
)
messages = st.builds(Message, st.sampled_from(["system", "user", "assistant"]), texts)
limits = {
    "sampling": samplings, "drafter": texts, "gamma": st.none() | st.integers(0, 16),
    "max_tokens": st.integers(1, 1 << 20), "stop": st.lists(texts.filter(bool), max_size=2).map(tuple),
    "detail": counts,
}  # fmt: skip
requests = (
    st.builds(Request, texts, st.lists(messages, min_size=1, max_size=3).map(tuple), **limits)
    | st.builds(Request, texts, prompt=texts, **limits)
    | st.builds(Request, texts, prompt_ids=st.lists(counts, min_size=1).map(tuple), **limits)
)
steps = st.integers(0, 64).flatmap(lambda n: st.builds(Step, st.just(n), st.integers(0, n)))
records = (
    rounds()
    | requests
    | st.builds(Loading, texts, texts, st.none() | reals, reals)
    | st.builds(Admitted, texts, counts, counts, reals, reals)
    | st.builds(Prefilled, texts, counts, counts, reals, reals)
    | st.builds(Notice, st.none() | texts, texts, reals)
    | st.builds(Totals, texts, reals, *[st.none() | counts] * 5, st.none() | st.lists(steps, max_size=3).map(tuple))
    | st.builds(Finished, texts, st.sampled_from(FinishReason), texts, texts, reals)
    | st.builds(Died, texts, reals)
)
