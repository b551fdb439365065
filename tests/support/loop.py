"""The event loop of a test: one for each, bounded in time, with no task left behind."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar

import pytest
import uvloop

P = ParamSpec("P")
T = TypeVar("T")

LIMIT = 120.0
"""Seconds after which a coroutine hangs, on however busy a machine."""


WATCHED = {"asyncio", "tieline", "tieline_client", "tieline_server"}
"""Whose tasks end with their test: those of libraries and of a test's own servers need not."""


def run(
    main: Coroutine[Any, Any, T],
    *,
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
    limit: float = LIMIT,
) -> T:
    """Runs a coroutine to its end on a loop of its own, by default of the server's kind.

    A hang is a ``TimeoutError``, and a task of the product that outlives it is a failure.
    """
    __tracebackhide__ = True

    async def bounded() -> T:
        __tracebackhide__ = True
        async with asyncio.timeout(limit):
            result = await main
        others = asyncio.all_tasks() - {asyncio.current_task()}
        left = [task for task in others if _package(task) in WATCHED]
        assert not left, f"tasks outlived the test: {left}"
        return result

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(bounded())


def _package(task: asyncio.Task[Any]) -> str | None:
    """The package whose coroutine a task runs; compiled libraries do not say."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    return None if frame is None else frame.f_globals.get("__name__", "").partition(".")[0]


def make_synchronous(item: pytest.Function, **how: Any) -> None:
    """Lets pytest call an ``async def`` test, or one that hypothesis calls for each example."""

    def synchronous(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        @wraps(test)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            __tracebackhide__ = True
            return run(test(*args, **kwargs), **how)

        return called

    # The examples of a parametrised test share the function that hypothesis calls.
    given = getattr(item.obj, "hypothesis", None)
    if given is not None and iscoroutinefunction(given.inner_test):
        given.inner_test = synchronous(given.inner_test)
    elif iscoroutinefunction(item.obj):
        item.obj = synchronous(item.obj)
