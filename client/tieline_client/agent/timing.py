"""Where the time of an agent's turns went: the service, the engine, the client."""

from collections.abc import Mapping, Sequence

from msgspec import Struct


class TurnTiming(Struct, frozen=True, kw_only=True):
    """The time of one turn, in seconds; None where the server does not tell.

    ``wall``: from the request to the last event, seen from here. ``service``: all that the
    server did around the engine. ``engine``: prefill and decode. ``client``: the tools that
    answered this turn.
    """

    wall: float
    service: float | None = None
    engine: float | None = None
    client: float = 0.0


def split(
    phases: Mapping[str, int] | None, before: Mapping[str, int] | None
) -> tuple[float | None, float | None]:
    """Seconds of service and engine between two states of a response's phases.

    A held response tells its phases so far at each hold; ``before`` is what it told last.

    >>> split({"overhead": 900, "prefill": 2000, "decode": 7000}, {"overhead": 400})
    (0.0005, 0.009)
    """
    if phases is None:
        return None, None
    past = before or {}

    def since(*names: str) -> int:
        return sum(phases.get(name, 0) - past.get(name, 0) for name in names)

    # Rendering happens inside the engine's time and is the service's work.
    engine = since("prefill", "decode") - since("render")
    return since("overhead") / 1e6, max(0, engine) / 1e6


def table(timings: Sequence[TurnTiming]) -> str:
    """A plain table, one row a turn and a sum, in milliseconds.

    >>> print(table([TurnTiming(wall=0.012, service=0.001, engine=0.01, client=0.002)]))
    turn   service    engine    client      wall
       1       1.0      10.0       2.0      12.0
     sum       1.0      10.0       2.0      12.0
    """
    total = TurnTiming(
        wall=sum(each.wall for each in timings),
        service=_sum([each.service for each in timings]),
        engine=_sum([each.engine for each in timings]),
        client=sum(each.client for each in timings),
    )
    rows = [(str(number), each) for number, each in enumerate(timings, 1)]
    lines = [f"turn{'service':>10}{'engine':>10}{'client':>10}{'wall':>10}"]
    lines += [_row(name, each) for name, each in (*rows, ("sum", total))]
    return "\n".join(lines)


def _row(name: str, timing: TurnTiming) -> str:
    cells = (timing.service, timing.engine, timing.client, timing.wall)
    return f"{name:>4}" + "".join(f"{_cell(seconds):>10}" for seconds in cells)


def _cell(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
