"""Due times, and one timer for all who wait."""

import asyncio
import time

from tieline_server.engines.scripted.pace import STEP, Pacer, Ticker
from tieline_server.engines.scripted.script import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


async def test_nobody_is_woken_before_their_time() -> None:
    clock = Clock()
    ticker = Ticker(clock)
    soon = asyncio.ensure_future(ticker.until(50.001))
    later = asyncio.ensure_future(ticker.until(50.003))
    await asyncio.sleep(0)
    clock.now = 50.002
    await soon
    done = [later.done()]
    clock.now = 50.003
    await later
    assert [*done, later.done()] == [False, True]


async def test_who_waits_for_less_is_woken_first_whoever_came_first() -> None:
    ticker, order = Ticker(time.monotonic), []

    async def wait(name: str, seconds: float) -> None:
        await ticker.until(time.monotonic() + seconds)
        order.append(name)

    await asyncio.gather(wait("c", 0.03), wait("a", 0.001), wait("b", 0.015))
    assert order == ["a", "b", "c"]


async def test_one_timer_serves_all_who_are_due() -> None:
    loop = asyncio.get_running_loop()
    timers = 0
    call_later = loop.call_later

    def counting(*args: object, **kwargs: object) -> asyncio.TimerHandle:
        nonlocal timers
        timers += 1
        return call_later(*args, **kwargs)  # type: ignore[arg-type]

    loop.call_later = counting  # type: ignore[method-assign]
    clock = Clock()
    ticker = Ticker(clock)
    waiting = asyncio.gather(*(ticker.until(50.002) for _ in range(100)))
    await asyncio.sleep(0)
    clock.now = 50.002
    await waiting
    assert timers == 1


async def test_a_time_that_has_passed_lets_the_loop_run_once() -> None:
    order: list[str] = []
    asyncio.get_running_loop().call_soon(order.append, "loop")
    await Ticker(time.monotonic).until(0)
    assert [*order, "waiter"] == ["loop", "waiter"]


async def test_who_gives_up_leaves_nothing_behind() -> None:
    ticker = Ticker(time.monotonic)
    tasks = [asyncio.ensure_future(ticker.until(time.monotonic() + 3600)) for _ in range(1000)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert (len(ticker), asyncio.all_tasks() - {asyncio.current_task()}) == (0, set())


async def test_giving_up_does_not_disturb_the_others() -> None:
    ticker = Ticker(time.monotonic)
    gone = asyncio.ensure_future(ticker.until(time.monotonic() + 0.001))
    stays = asyncio.ensure_future(ticker.until(time.monotonic() + 0.005))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait_for(stays, 5)
    assert "woken" == "woken"


def test_a_ticker_serves_one_loop_after_another() -> None:
    ticker = Ticker(time.monotonic)

    async def give_up() -> None:
        task = asyncio.ensure_future(ticker.until(time.monotonic() + 3600))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(give_up())
    asyncio.run(asyncio.wait_for(ticker.until(time.monotonic() + 0.001), 5))


async def test_all_can_be_woken_before_their_time() -> None:
    ticker = Ticker(time.monotonic)
    waiting = asyncio.gather(*(ticker.until(time.monotonic() + 3600) for _ in range(3)))
    await asyncio.sleep(0)
    ticker.wake_all()
    await asyncio.wait_for(waiting, 5)
    assert "woken" == "woken"


async def allowance(pacer: Pacer, ticker: Ticker, sent: int) -> int:
    """Waits for the next token, and tells how many are due."""
    due = pacer.due(sent)
    now = ticker.clock() if due is None else await ticker.until(due)
    return pacer.allowance(sent, now)


def test_an_unlimited_pace_allows_whole_steps_and_waits_between_them_only() -> None:
    pacer = Pacer(Pace(), Ticker(time.monotonic), start=50.0)
    assert [pacer.due(sent) for sent in (0, STEP, 2 * STEP)] == [None, 50.0, 50.0]
    assert [pacer.allowance(sent, 51.0) for sent in (0, STEP, 2 * STEP)] == [STEP] * 3


def test_an_unlimited_pace_waits_for_the_time_to_the_first_token() -> None:
    pacer = Pacer(Pace(ttft_ms=250), Ticker(time.monotonic), start=50.0)
    assert pacer.due(0) == 50.25


async def test_token_n_is_due_at_start_and_time_to_first_and_n_over_rate() -> None:
    clock = Clock()
    pace = Pace(ttft_ms=2000, tokens_per_second=4)
    ticker = Ticker(clock)
    pacer = Pacer(pace, ticker, start=clock.now)
    allowed: list[int] = []
    for now in (52.0, 52.25, 52.99, 54.0):
        clock.now = now
        allowed.append(await allowance(pacer, ticker, sum(allowed)))
    assert allowed == [1, 1, 2, 5]


async def test_a_backlog_is_handed_out_in_bounded_steps() -> None:
    clock = Clock()
    ticker = Ticker(clock)
    pacer = Pacer(Pace(tokens_per_second=1000), ticker, start=clock.now)
    clock.now += 0.0795
    allowed: list[int] = []
    while sum(allowed) < 80:
        allowed.append(await allowance(pacer, ticker, sum(allowed)))
    assert allowed == [STEP, STEP, 80 - 2 * STEP]


async def test_a_stall_moves_everything_after_it() -> None:
    clock = Clock()
    ticker = Ticker(clock)
    pacer = Pacer(Pace(tokens_per_second=1000), ticker, start=clock.now)
    sent = await allowance(pacer, ticker, 0)
    stalled = asyncio.ensure_future(pacer.stall(0.004))
    await asyncio.sleep(0)
    clock.now += 0.004
    await stalled
    clock.now += 0.002
    assert (await allowance(pacer, ticker, sent)) == 2
