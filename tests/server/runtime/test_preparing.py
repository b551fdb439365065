"""Creates that run as a warm-up without a client."""

from typing import Any

import pytest

from tests.support.core import create_of, output
from tests.support.runtime import Stage, hello
from tieline import events
from tieline.errors import ApiError
from tieline_server.core.effects import Prompt
from tieline_server.core.values import Principal
from tieline_server.engines.base import EngineError
from tieline_server.runtime import count_input_tokens


class TestCounting:
    async def test_it_is_what_a_create_would_have_and_leaves_no_trace(self) -> None:
        stage = Stage(hello)
        create = create_of(model="m", input="hi")
        counted = await count_input_tokens(stage.services, Principal(), create)
        assert stage.engine.warmed == [], "nothing is prepared without a client"
        stage.create("hi", generate=False)
        completed = await stage.until(events.ResponseCompleted)
        assert counted == completed.response.usage.input_tokens > 0
        assert len(stage.records) == 1, "counting is no turn"
        assert stage.engine.prompts == []
        await stage.driver.close()
        assert stage.services.running.connections == set()

    async def test_history_in_the_store_counts(self) -> None:
        stage = Stage(hello)
        stage.create("a long story", store=True)
        parent = (await stage.until(events.ResponseCompleted)).response.id
        await stage.driver.close()
        counts = [
            await count_input_tokens(stage.services, Principal(), create_of(**body))
            for body in (
                {"model": "m", "input": "hi"},
                {"model": "m", "input": "hi", "previous_response_id": parent},
            )
        ]
        assert counts[1] > counts[0]
        with pytest.raises(ApiError) as refused:
            await count_input_tokens(
                stage.services,
                Principal(owner="other"),
                create_of(model="m", input="hi", previous_response_id=parent),
            )
        assert refused.value.code == "previous_response_not_found"

    @pytest.mark.parametrize(
        ("body", "status", "code"),
        [
            ({"model": "nobody"}, 404, "model_not_found"),
            ({"model": "stubborn"}, 403, "model_not_allowed"),
            ({"prompt": {"id": "p"}}, 400, "unsupported_parameter"),
            ({"input": [output("nope")]}, 400, "tool_call_not_found"),
        ],
    )
    async def test_it_raises_what_the_create_would(
        self, body: dict[str, Any], status: int, code: str
    ) -> None:
        stage = Stage(hello)
        create = create_of(**{"model": "m", "input": "hi", **body})
        principal = Principal(models=frozenset({"m"}))
        with pytest.raises(ApiError) as refused:
            await count_input_tokens(stage.services, principal, create)
        assert (refused.value.status, refused.value.code) == (status, code)
        await stage.driver.close()

    async def test_an_error_outside_the_table_keeps_its_status(self) -> None:
        stage = Stage(hello)

        async def count(prompt: Prompt) -> int:
            raise EngineError("vendor_code", "Try later.", status=503)

        stage.engine.count = count  # type: ignore[method-assign]
        with pytest.raises(ApiError) as refused:
            await count_input_tokens(stage.services, Principal(), create_of(input="hi"))
        assert (refused.value.status, refused.value.code) == (503, "vendor_code")
        await stage.driver.close()
