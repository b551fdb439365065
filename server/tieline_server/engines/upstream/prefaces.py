"""What comes again with every create (instructions, tools, formats), encoded once for a lane.

It is used again for as long as the lane sends the same.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from tieline_server.core.create.settings import Settings
from tieline_server.core.create.tools import Tool
from tieline_server.core.effects import Prompt

LANES: Final = 1024
"""Lanes whose preface is kept."""


class Preface(Struct, frozen=True, kw_only=True):
    """What a lane's settings come to: the body before and behind what is said."""

    settings: Settings
    model: str
    extra: tuple[Tool, ...]
    head: bytes
    told: bool
    """Whether the head has a message already."""
    tail: bytes
    tools: Mapping[str, Tool]
    """The tools that the model may call, by their names upstream."""


class Prefaces:
    """``make`` makes one; ``options`` are what of the settings it is made of, beside tools.

    Instructions and ``tool_choice`` are looked at as well.
    """

    def __init__(
        self,
        make: Callable[[Prompt, tuple[Tool, ...]], Preface],
        options: Callable[[Settings], Mapping[str, Any]],
    ) -> None:
        self._make = make
        self._options = options
        self._kept: OrderedDict[str, Preface] = OrderedDict()

    def of(self, prompt: Prompt, extra: tuple[Tool, ...]) -> Preface:
        """The preface of this lane; ``extra`` are the tools that the chain has brought."""
        kept = self._kept.get(prompt.session)
        if kept is None or not self._serves(kept, prompt, extra):
            kept = self._kept[prompt.session] = self._make(prompt, extra)
            prompt.work.render += len(kept.head) + len(kept.tail)
            if len(self._kept) > LANES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(prompt.session)
        return kept

    def clear(self) -> None:
        """Forgets all of them: they would come out otherwise now."""
        self._kept.clear()

    def _serves(self, kept: Preface, prompt: Prompt, extra: tuple[Tool, ...]) -> bool:
        """Whether it would come out the same.

        A lane that sends the same bytes again gets the same objects (``settings.SettingsCache``).
        """
        mine, theirs = kept.settings, prompt.settings
        if kept.extra is not extra or kept.model != prompt.model:
            return False
        return mine is theirs or (
            mine.instructions is theirs.instructions
            and mine.tools is theirs.tools
            and mine.tool_choice is theirs.tool_choice
            and self._options(mine) == self._options(theirs)
        )
