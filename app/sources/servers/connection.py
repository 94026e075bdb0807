"""A connection to a server: its address, its key, and sentences for what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2

from specchat.app.sources.servers.listing import Listing
from specchat.app.sources.servers.llama_cpp import LlamaCpp
from specchat.app.sources.servers.lm_studio import LMStudio
from specchat.app.sources.servers.plain import Plain
from specchat.app.sources.servers.server import Server
from specchat.app.sources.servers.sglang import SGLang
from specchat.app.sources.servers.specchat import Specchat
from specchat.app.sources.servers.vllm import VLLM
from specchat.engine import EngineError

KEEP_S = 1.0
"""How long an idle connection is used again: servers close theirs after a few seconds, at times just then."""
CONNECT_S = 10.0
SILENCE_S = 600.0
"""Seconds without a byte of a reply until it counts as lost: a request may wait for a slot."""
KINDS = (Specchat, LlamaCpp, VLLM, SGLang, LMStudio, Plain)
"""The first that finds itself in the answers of a server reads it."""
REFUSED = (401, 403)
LOST = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, RuntimeError)
"""What a connection that breaks, or is closed meanwhile, raises."""


class Connection:
    """HTTP to one server.

    Args:
        url: of the server, with or without /v1.
        key: its key, if it has one.

    Raises:
        EngineError: it is no address.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = _base(url)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        make = partial(
            httpx2.Client, base_url=self.url, headers=headers, timeout=timeout, verify=httpx2.create_ssl_context()
        )
        self.http = make(limits=httpx2.Limits(max_connections=None, keepalive_expiry=KEEP_S))
        self.replies = make(limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0))
        """For streams, each on a connection of its own, which is known as soon as it is made, and can be cut."""

    def close(self) -> None:
        """Use it no more."""
        self.http.close()
        self.replies.close()

    def meet(self, model: str | None) -> Server:
        """Ask the server who it is; `model` names one of its models.

        Raises:
            EngineError: it cannot be reached, refuses, speaks another protocol, or has no such model.
        """
        try:
            reply = self.http.get("/v1/models", timeout=CONNECT_S)
        except LOST as error:
            raise EngineError(f"{self.url} cannot be reached ({words(error)}): start a server there") from None
        self._check_key(reply)
        try:
            models = reply.raise_for_status().json()["data"]
            known = all(isinstance(each, Mapping) and isinstance(each["id"], str) for each in models)
        except (httpx2.HTTPError, ValueError, LookupError, TypeError):
            known = False
        if not known:
            raise EngineError(f"{self.url} does not list models at /v1/models: it is no server of the OpenAI protocol")
        if not models:
            raise EngineError(f"{self.url} has no model: load one there")
        listing = Listing(self.url, models, model, self.ask)
        return next(server for kind in KINDS if (server := kind.found(listing)) is not None)

    def ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """GET, or POST of a body: the JSON that came; None where there is none.

        Raises:
            EngineError: the server refuses the key.
        """
        with suppress(*LOST, ValueError):
            reply = (
                self.http.get(path, timeout=CONNECT_S)
                if body is None
                else self.http.post(path, json=body, timeout=CONNECT_S)
            )
            self._check_key(reply)
            return reply.json() if reply.status_code == 200 else None
        return None

    def _check_key(self, reply: httpx2.Response) -> None:
        if reply.status_code in REFUSED:
            said = complaint(reply.content, reply.status_code)
            raise EngineError(f"{self.url} refuses the key: {said} (put the right one into SPECCHAT_API_KEY)")


def chunks(reply: httpx2.Response) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events.

    Raises:
        EngineError: the server reports an error, or something else came.
    """
    for line in reply.iter_lines():
        if not line.startswith("data:") or (data := line[5:].strip()) == "[DONE]":
            continue
        try:
            values = json.loads(data)
            if not isinstance(values, dict):
                raise TypeError
        except (ValueError, TypeError, RecursionError):
            raise EngineError("the server sent something that is no JSON: it may speak another protocol") from None
        if values.get("error"):
            raise EngineError(complaint(data.encode(), reply.status_code))
        yield values


def complaint(body: bytes, status: int) -> str:
    """What the server says is wrong."""
    with suppress(ValueError, LookupError, TypeError):
        said = json.loads(body)
        error = said.get("error", said) if isinstance(said, dict) else said
        message = error if isinstance(error, str) else error["message"]
        if isinstance(message, str) and message.strip():
            return message
    return f"the server answers with status {status}"


def words(error: Exception) -> str:
    """The first line of an error, or its name."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _base(url: str) -> str:
    """The address up to where /v1 begins.

    Raises:
        EngineError: it is none.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        known = (parts.scheme in ("http", "https") and parts.hostname and parts.port is None) or parts.port
    except ValueError:
        known = False
    path = parts.path.rstrip("/") if known else ""
    if not known or (path and not path.endswith("/v1")):
        raise EngineError(f"{url} is not the address of a server: give one such as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix('/v1')}"
