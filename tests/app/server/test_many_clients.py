"""Sixty-four clients at once against the real default model: each gets what it would get alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.app.server.served import Served

CLIENTS = 64
TOPICS = ("rivers", "colours", "poets", "metals", "planets", "fruits", "cities", "tools")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.usefixtures("default_model")
def test_each_of_many_clients_gets_its_own_reply() -> None:
    with Served("--slots", CLIENTS, "--context", 256) as served:
        client = served.openai()
        model = client.models.list().data[0].id

        def ask(number: int, stream: bool = True) -> str:
            question = f"Name {2 + number // len(TOPICS)} {TOPICS[number % len(TOPICS)]}."
            made = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": question}], max_tokens=24, stream=stream
            )
            if not stream:
                return made.choices[0].message.content
            return "".join(chunk.choices[0].delta.content or "" for chunk in made)

        with ThreadPoolExecutor(CLIENTS) as pool:
            together = list(pool.map(ask, range(CLIENTS)))
        assert together[::7] == [ask(number, stream=False) for number in range(0, CLIENTS, 7)]
        assert len(set(together)) > CLIENTS / 2
        served.wait_until_idle()
        assert not served.metrics().get("specchat_requests_total{reason=cancelled}")
        assert served.stop() == 0
        assert served.errors == ""
