"""Options that several commands share. All default to None, "not given", so that variables and the settings count."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any

import typer

from specchat.app.errors import UsageError
from specchat.app.settings.settings import AUTO

Target = Annotated[
    str | None, typer.Option("--target", metavar="MODEL", help="A preset, a hub id, a folder or a GGUF file.")
]
Draft = Annotated[
    list[str] | None,
    typer.Option(
        "--draft",
        metavar="MODEL",
        help="A smaller model that drafts (may be repeated), a draft head, or counted tables.",
        show_default=False,
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        metavar="auto|none|suffix|ngram|copy|random|bigram|unigram|head|combined|model|model-tree|merged|hierarchical|pass",
        help="What proposes tokens.",
        show_default=False,
    ),
]


def _gamma(text: str) -> int | str:
    if text == AUTO:
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor auto") from None


Gamma = Annotated[
    Any, typer.Option("--gamma", metavar="N|auto", parser=_gamma, help="Tokens to draft each round; auto adapts.")
]
Temperature = Annotated[float | None, typer.Option("--temperature", metavar="T", help="0 is greedy.")]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="N", help="Keep the N likeliest tokens; 0 keeps all.")]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="P", help="Keep the likeliest tokens that make up P.")]
MinP = Annotated[
    float | None, typer.Option("--min-p", metavar="P", help="Drop tokens below this share of the likeliest.")
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Repeat the same random draws.")]
RepetitionPenalty = Annotated[
    float | None, typer.Option("--repetition-penalty", metavar="F", help="Above 1: what was said is less likely.")
]
PresencePenalty = Annotated[
    float | None, typer.Option("--presence-penalty", metavar="F", help="Above 0: the same, for the reply alone.")
]


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a token id, = and a number, such as 253=-5") from None


LogitBias = Annotated[
    list[Any] | None,
    typer.Option(
        "--logit-bias", metavar="ID=BIAS", parser=_bias, help="Add BIAS to the logit of a token; may be repeated."
    ),
]
Lenience = Annotated[
    float | None,
    typer.Option("--lenience", metavar="L", help="Below 1: faster, and no longer the target's exact distribution."),
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", metavar="N", help="End the reply after N tokens.")]
Slots = Annotated[int | None, typer.Option("--slots", metavar="N", help="Replies that are written at once.")]
Context = Annotated[int | None, typer.Option("--context", metavar="N", help="Tokens of prompt and reply together.")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="TYPE", help="auto, float32, bfloat16 or float16.", show_default=False)
]
Quantize = Annotated[
    str | None,
    typer.Option(
        "--quantize",
        metavar="auto|q8|q4|none",
        help="On the CPU: weights in 8 or 4 bits; auto leaves them as they come.",
        show_default=False,
    ),
]
Device = Annotated[str | None, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1, …")]

Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking",
        help="Let the model think first, or not, where its chat template has a switch for that.",
        show_default=False,
    ),
]


def switched(on: bool | None) -> str | None:
    """A switch in the words of the settings; None where it was not given."""
    return None if on is None else "on" if on else "off"


def joined(drafts: Sequence[str] | None) -> str | None:
    """Drafts in the words of the settings; None where none was given."""
    return None if drafts is None else ",".join(drafts)


def argument(name: str, value: object) -> str:
    """An option of `SETTINGS` as it is written on a command line."""
    if name == "thinking":
        return "--thinking" if value == "on" else "--no-thinking"
    return f"--{name.replace('_', '-')}={value}"


SETTINGS: Mapping[str, Any] = {
    "target": Target,
    "draft": Draft,
    "drafter": Drafter,
    "gamma": Gamma,
    "temperature": Temperature,
    "top_k": TopK,
    "top_p": TopP,
    "min_p": MinP,
    "seed": Seed,
    "repetition_penalty": RepetitionPenalty,
    "presence_penalty": PresencePenalty,
    "lenience": Lenience,
    "max_tokens": MaxTokens,
    "thinking": Thinking,
    "slots": Slots,
    "context": Context,
    "dtype": Dtype,
    "quantize": Quantize,
    "device": Device,
}
"""The options of a model and of its replies, by the names of the settings."""
Given = Annotated[Mapping[str, Any], "the options of SETTINGS that were given, the others None"]
NOTHING: Mapping[str, Any] = {}


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of `SETTINGS` in the place of its parameter `given`, which gets them."""
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        kind = parameter.kind
        if parameter.name == "given":
            shared = [inspect.Parameter(name, kind, default=None, annotation=how) for name, how in SETTINGS.items()]
            parameters += shared
        else:
            parameters.append(parameter)

    @wraps(command)
    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in SETTINGS}
        read = {"thinking": switched(given["thinking"]), "draft": joined(given["draft"])}
        command(**values, given={**given, **read})

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


Rejected = Annotated[
    str | None,
    typer.Option(
        "--rejected",
        metavar="fold|show|hide",
        help="Drafts that a finished reply is without: a mark for each stretch, all of them, or none.",
        show_default=False,
    ),
]


Attach = Annotated[
    str | None,
    typer.Option(
        "--attach",
        metavar="URL",
        help="Ask a server of the OpenAI protocol; --target names one of its models (key: SPECCHAT_API_KEY).",
    ),
]
OF_AN_ENGINE = ("draft", "slots", "context", "dtype", "quantize", "device", "lenience")
"""Options that mean nothing where a server has the model."""


def check_attached(url: str | None, options: Mapping[str, object]) -> None:
    """Refuse options of an engine beside the address of a server.

    Raises:
        UsageError: there is one.
    """
    for name in OF_AN_ENGINE if url else ():
        if options.get(name) is not None:
            raise UsageError(f"--{name} contradicts --attach: the server at {url} was started with its own")


def check_lanes(url: str | None, right: str | None, order: str | None) -> None:
    """Refuse what is said of the right lane where that is the server of this address.

    Raises:
        UsageError: something is.
    """
    for name, value in (("--right", right), ("--order", order)) if url else ():
        if value is not None:
            raise UsageError(f"{name} contradicts --attach: the server is the right lane, asked after the left one")


def check(options: Mapping[str, object]) -> None:
    """Refuse options that contradict each other.

    Raises:
        UsageError: they do.
    """
    gamma, draft = options.get("gamma"), options.get("draft")
    gamma = None if gamma == AUTO else gamma  # nothing is to be adapted, which is no contradiction
    if options.get("drafter") == "none":
        for name, value in (("gamma", gamma), ("draft", draft)):
            if value:
                raise UsageError(
                    f"--{name} {value} contradicts --drafter none, which drafts nothing: leave one of them out"
                )
