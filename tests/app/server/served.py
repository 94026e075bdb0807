"""`specchat serve` as users run it: in a separate process, on a free port."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
import openai
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import PATIENCE_S, until

PAGE = "http://localhost:3000"
"""The page that may ask the server of the tests."""


class Served:
    """A server that is running.

    Args:
        arguments: options of `specchat serve`.
        home: its `SPECCHAT_HOME`; that of this process if None.
        key: the key to start it with and to call it with.
    """

    def __init__(self, *arguments: object, home: Path | None = None, key: str | None = None) -> None:
        self.key = key
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {**os.environ, "SPECCHAT_API_KEY": key or ""}
        if home is not None:  # a tiny model, for which threads are no help
            environment["OMP_NUM_THREADS"] = "1"
            environment["SPECCHAT_HOME"] = str(home)
        command = [sys.executable, "-m", "specchat", "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self.said = self.process.stdout.readline()
        assert " on http://" in self.said, self.errors
        self.url = self.said.split(" on ")[1].split("/v1")[0]
        self.port = int(self.url.rsplit(":", 1)[1])

    @property
    def errors(self) -> str:
        """What it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read()

    def http(self, **headers: str) -> httpx2.Client:
        """A plain client, with the key."""
        if self.key:
            headers.setdefault("Authorization", f"Bearer {self.key}")
        return httpx2.Client(base_url=self.url, headers=headers, timeout=PATIENCE_S)

    def openai(self) -> openai.OpenAI:
        """OpenAI's own client."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key or "none", max_retries=0, timeout=PATIENCE_S)

    def metrics(self) -> dict[str, float]:
        """Every sample; labels follow the name as `{name=value}`."""
        with self.http() as client:
            text = client.get("/metrics").raise_for_status().text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items()))
                found[sample.name + labels] = sample.value
        return found

    def wait_until_idle(self) -> None:
        """Wait until no request runs or waits."""
        states = ("specchat_requests_running", "specchat_requests_waiting")
        until(lambda: not any(map(self.metrics().get, states)), self.metrics)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """End it with SIGTERM; its exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        self._errors.close()


def chat(text: str = "the quick brown fox", **more: Any) -> dict[str, Any]:
    """The body of a chat of one turn."""
    return {"messages": [{"role": "user", "content": text}], **more}
