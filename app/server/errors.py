"""Errors of the server as OpenAI's API states them."""

from starlette.responses import JSONResponse, Response

GONE = 499
"""Status of a call whose client has disconnected; it is not sent."""
ERRORS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ERRORS |= dict.fromkeys((500, 503, 504), "server_error")
"""Type of an error by its status; the default is `invalid_request_error`."""


class ApiError(Exception):
    """An error that is sent to the client.

    Args:
        status: HTTP status.
        message: one sentence that says what is wrong and what to do.
        param: the field of the request.
        code: an identifier for programs.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def fields(self) -> dict[str, str | None]:
        """The error in the body."""
        kind = ERRORS.get(self.status, "invalid_request_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}

    def response(self) -> Response:
        """The HTTP response."""
        headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}.get(self.status, {})
        if self.status in (408, 413):  # the rest of the body is not read
            headers["connection"] = "close"
        return JSONResponse({"error": self.fields}, self.status, headers)
