"""The engine interface: what it serves, how it samples, how it ends, how the settings open it."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from tieline.errors import ApiError, TielineError
from tieline_server.config import Config
from tieline_server.config.toml_tables import ModelSettings
from tieline_server.core.deltas import Delta
from tieline_server.core.effects import Prompt


class Model(Struct, frozen=True, kw_only=True):
    """A model that an engine serves. ``steering`` says whether a running turn can be steered."""

    id: str
    created: int = 0
    owned_by: str = "tieline"
    context_window: int | None = None
    steering: bool = True
    price: Mapping[str, float] | None = None
    """Per million tokens. Settings know it, engines do not."""


class EngineError(ApiError):
    """An engine refuses or fails: ``code`` is a row of ``tieline.errors`` or the engine's own.

    The message is shown to the client, so it is written for the client. Anything else that an
    engine raises is our fault and reaches the client as a fixed ``server_error``.
    """

    phases: dict[str, int] | None = None
    """What it measured before, in microseconds, as :class:`Finish` would have told."""


class Engine(Protocol):
    """What samples."""

    name: str

    def models(self) -> Sequence[Model]:
        """The models on offer; the first one answers a create that names none."""
        ...

    def sample(self, prompt: Prompt) -> AsyncGenerator[Sequence[Delta], None]:
        """Samples one answer, a step at a time.

        The first step holds :class:`Accepted` once the engine has taken the prompt; the last
        ends with :class:`Finish`. Closing the generator (``aclose``) cancels: the engine stops
        at once and frees its slot, whatever it was doing. With ``settings.generate`` false it
        prepares what the next turn of the chain can use, and says nothing between the two.
        Raises :class:`EngineError` to refuse (before ``Accepted``) or to fail (after it).
        """
        ...

    async def count(self, prompt: Prompt) -> int:
        """How many input tokens the prompt has, without sampling.

        What takes long is counted beside the loop. Raises :class:`EngineError` to refuse.
        """
        ...

    async def close(self) -> None:
        """Ends what runs and frees the model. Called once."""
        ...


class EngineAway(TielineError):
    """An engine cannot be used now and may come by itself; the message is one line."""


@runtime_checkable
class Probing(Protocol):
    """An engine that has to ask another server before it knows its models."""

    @property
    def probed(self) -> bool:
        """Whether it knows them."""
        ...

    async def probe(self) -> None:
        """Asks; called before anything else, and again where that failed.

        Raises :class:`TielineError` of one line, :class:`EngineAway` where it may come.
        """
        ...

    async def answers(self) -> bool:
        """Whether a turn would find an answer. A server that turns found away is asked anew."""
        ...


class Opening(NamedTuple):
    """One engine that the settings ask for."""

    config: Config
    name: str
    """Under which clients see it: more than one engine of a kind may be open."""
    table: ModelSettings
    """The first model that it samples; a model without a table has the defaults."""
    salt: Callable[[str], str] | None = None
    """Makes a name of an owner that says nothing about who that is."""


class EngineKind(ABC):
    """What the table of engines names: reads the settings of one kind, and opens its engines."""

    def settings_of(self, config: Config, table: ModelSettings) -> Hashable:
        """What a model's engine is opened with, where models may differ in it.

        Models of equal settings share one engine. None: this model cannot have an engine.
        """
        return ()

    @abstractmethod
    def open(self, opening: Opening) -> Engine:
        """Opens an engine, and blocks for as long as that takes. Raises :class:`TielineError`."""

    def prepare(self) -> None:  # noqa: B027
        """Reads what every engine of this kind shares in a process, before one is opened."""
