"""The ASGI application of `specchat serve`: routes, error responses, origins and the key."""

import asyncio
import sys
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from json import loads
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from specchat.app.errors import AppError
from specchat.app.server.answer import Answer
from specchat.app.server.calls import Calls
from specchat.app.server.choice import Echo
from specchat.app.server.errors import GONE, ApiError
from specchat.app.server.formats import ChatFormat, CompletionFormat, Format
from specchat.app.server.guards import Guard, ReadToTheEnd
from specchat.app.server.protocol import AnyBody, ChatBody, CompletionBody, TokenizeBody, parse
from specchat.app.server.requests import Defaults, conversation, echoed, read_prompt, requests_of
from specchat.app.server.responses import ResponsesFormat
from specchat.app.server.responses_body import ResponsesBody, renamed
from specchat.app.settings.settings import Settings
from specchat.engine import Engine, Ready, TokenScore, to_json

BODY_S = 30.0
"""Seconds that a client may take to send its body."""
LEAST_BODY = 1 << 20
BODY_BYTES_PER_TOKEN = 64
"""Longest body per token of the context, if longer than `LEAST_BODY`: prompts of longer bodies cannot fit."""
_QUICK = 1 << 14
"""Bodies that are shorter than this are parsed on the loop: they take less than a millisecond."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on requests."""

    queue: int
    """Requests that may wait for a slot."""
    seconds: float
    """The longest time of a reply, waiting included."""
    stop_repeats: bool = False
    """Whether replies that repeat themselves end, unless their request says otherwise."""


class Service:
    """The handlers of the routes. Its methods run on the server's loop.

    Args:
        engine: loaded.
        settings: defaults for requests.
        limits: limits on requests.
        loop: the server's loop.
    """

    def __init__(self, engine: Engine, settings: Settings, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.ready: Ready = engine.wait_ready()
        self.calls = Calls(engine, loop, limits.queue, limits.seconds)
        self._engine = engine
        own = settings.with_model(self.ready.sampling)
        self._defaults = Defaults(engine, own, self.ready.context, limits.stop_repeats)
        self._names = {self.ready.target, settings.target}
        self._created = int(time.time())
        self._largest = max(LEAST_BODY, BODY_BYTES_PER_TOKEN * self.ready.context)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="prompts")

    async def chat(self, request: Request) -> ASGIApp:
        """POST /v1/chat/completions."""
        body = await self._parsed(ChatBody, request)
        form = partial(ChatFormat, speculation=bool(body.speculation))
        return await self._answer(body, "chatcmpl-", form, body.top_logprobs or 0 if body.logprobs else None)

    async def responses(self, request: Request) -> ASGIApp:
        """POST /v1/responses."""
        body = await self._parsed(ResponsesBody, request)
        try:
            return await self._answer(body.chat(), "resp_", partial(ResponsesFormat, body=body), None)
        except ApiError as error:
            raise renamed(error) from None

    async def completions(self, request: Request) -> ASGIApp:
        """POST /v1/completions."""
        body = await self._parsed(CompletionBody, request)
        form = partial(CompletionFormat, speculation=bool(body.speculation))
        return await self._answer(body, "cmpl-", form, body.logprobs, request if body.echo else None)

    async def tokenize(self, request: Request) -> ASGIApp:
        """POST /tokenize."""
        body = await self._parsed(TokenizeBody, request)
        self._check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "the request needs either a prompt or messages: give it one of them", param="prompt")
        prompt = body.prompt if body.prompt is not None else conversation(body.messages or ())
        ids = await self._off_the_loop(read_prompt, prompt, self._engine)
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": self.ready.context})

    async def models(self, request: Request) -> ASGIApp:  # noqa: ARG002
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> ASGIApp:
        """GET /v1/models/NAME."""
        self._check_model(request.path_params["name"])
        return JSONResponse(self._model())

    async def health(self, request: Request) -> ASGIApp:  # noqa: ARG002
        """GET /health."""
        self.calls.check_alive()
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> ASGIApp:  # noqa: ARG002
        """GET /metrics."""
        return Response(self.calls.figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def close(self) -> None:
        """Stop the thread that reads prompts."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _answer(
        self,
        body: ChatBody | CompletionBody,
        prefix: str,
        form: Callable[[str, str, int], Format],
        top: int | None,
        echo: Request | None = None,
    ) -> ASGIApp:
        self._check_model(body.model)
        call_id = f"{prefix}{uuid.uuid4().hex}"
        requests = await self._off_the_loop(requests_of, body, call_id, self._defaults)
        echoes = await self._echoes(body, requests, echo) if echo and isinstance(body, CompletionBody) else ()
        return Answer(self.calls, requests, form(call_id, self.ready.target, int(time.time())), body, top, echoes)

    async def _echoes(self, body: CompletionBody, requests: Sequence[Any], request: Request) -> list[Echo]:
        """The prompt of each of these requests of the engine, with its log-probabilities if they are wanted."""
        choices = body.n or 1
        texts: list[tuple[str, list[str]]] = await self._off_the_loop(echoed, body, requests, self._engine)
        scores: Sequence[list[TokenScore] | None] = [None] * len(texts)
        if body.logprobs is not None:
            prompts = [each.prompt_ids for each in requests[::choices]]
            scores = await self.calls.scores(prompts, body.logprobs, request.receive)
        made = [Echo.of(text, pieces, own) for (text, pieces), own in zip(texts, scores, strict=True)]
        return [each for each in made for _ in range(choices)]

    async def _parsed(self, kind: type[AnyBody], request: Request) -> AnyBody:
        data = await self._body(request)
        return parse(kind, data) if len(data) < _QUICK else await self._off_the_loop(parse, kind, data)

    async def _off_the_loop(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._reader, work, *arguments)

    async def _body(self, request: Request) -> bytes:
        """The body of a request.

        Raises:
            ApiError: it is too long, takes too long, or breaks off.
        """
        data = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for part in request.stream():
                    data += part
                    if len(data) > self._largest:
                        message = f"the body is longer than {self._largest} bytes: no prompt of that size fits"
                        raise ApiError(413, message, code="body_too_large")
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {BODY_S:g} seconds: send it again") from None
        except ClientDisconnect:
            raise ApiError(GONE, "the client has disconnected") from None
        return bytes(data)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name not in self._names:
            message = f"the model {name!a:.120} is not served here: it is {self.ready.target}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _model(self) -> dict[str, Any]:
        about = {"id": self.ready.target, "object": "model", "created": self._created, "owned_by": "specchat"}
        return {**about, "max_model_len": self.ready.context, "speculation": loads(to_json(self.ready))}


def make_application(service: Service, key: str | None, origins: list[str], hosts: Collection[str]) -> ASGIApp:
    """The ASGI application; `origins` and `hosts` as for `Guard`."""
    routes = [
        Route("/v1/chat/completions", service.chat, methods=["POST"]),
        Route("/v1/responses", service.responses, methods=["POST"]),
        Route("/v1/completions", service.completions, methods=["POST"]),
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.model),
        Route("/tokenize", service.tokenize, methods=["POST"]),
        Route("/health", service.health),
        Route("/metrics", service.metrics),
    ]
    cors = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])
    # CORS comes first: it answers preflight requests, which have no key, and lets pages read the guard's refusals.
    guard = Middleware(Guard, key=key, origins=origins, hosts=hosts)
    middleware = [Middleware(ReadToTheEnd), *([cors] if origins else []), guard]
    handlers: dict[Any, Any] = {HTTPException: _no_route, ApiError: _refusal, AppError: _refusal, Exception: _fault}
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


async def _no_route(request: Request, error: HTTPException) -> Response:
    message = str(error.detail)
    if error.status_code in (404, 405):
        message = f"{request.method} {request.url.path!a:.120} is not served here: see specchat serve --help"
    return ApiError(error.status_code, message).response()


async def _refusal(request: Request, error: ApiError | AppError) -> Response | None:  # noqa: ARG001
    refusal = error if isinstance(error, ApiError) else ApiError(400, str(error))
    return None if refusal.status == GONE else refusal.response()


async def _fault(request: Request, error: Exception) -> Response:
    print(f"specchat: {request.url.path!a:.120} failed: {type(error).__name__}: {error!a:.200}", file=sys.stderr)
    return ApiError(500, f"this request failed on an internal error ({type(error).__name__})").response()
