"""Which model a name means, and which engine serves it."""

from collections.abc import Container, Iterable
from typing import Final

from tieline.errors import ApiError, TielineError
from tieline_server.core.values import Resolved

RETRY_AFTER: Final = 1.0
"""Seconds after which an engine that is awaited may have come."""


class _All:
    def __contains__(self, _name: object) -> bool:
        return True


ALL: Final[Container[str | None]] = _All()
"""Any name: which models there will be is not known yet."""


class RoutingError(TielineError):
    """The models cannot be told apart; the message is one line, for who starts the server."""


class ModelCatalog:
    """The models of all engines by name; the first one is the default.

    ``aliases`` are further names: (alias, name). ``awaited`` are names of models whose engines
    are not there yet, None among them where they have the default; ALL of them may be. Raises
    :class:`RoutingError` when two models have the same name, or when there is none.

    >>> ModelCatalog([Resolved(model="small", engine="llama")]).resolve(None).model
    'small'
    """

    def __init__(
        self,
        models: Iterable[Resolved],
        aliases: Iterable[tuple[str, str]] = (),
        *,
        awaited: Container[str | None] = (),
    ) -> None:
        self._awaited = awaited
        self._models: dict[str | None, Resolved] = {}
        for model in models:
            if model.model in self._models:
                raise RoutingError(f"more than one engine serves a model named '{model.model}'")
            self._models.setdefault(None, model)
            self._models[model.model] = model
        if None in awaited:
            self._models.pop(None, None)
        elif not self._models:
            raise RoutingError("no engine serves a model")
        self._entries = tuple(each for name, each in self._models.items() if name is not None)
        for alias, name in aliases:
            if alias in self._models:
                raise RoutingError(f"more than one model has the name '{alias}'")
            if name in self._models:
                self._models[alias] = self._models[name]

    def become(self, other: "ModelCatalog") -> None:
        """From now on it is as another one, for all who have it."""
        self._awaited = other._awaited
        self._models, self._entries = other._models, other._entries

    def resolve(self, name: str | None) -> Resolved | None:
        """The model of this name, the default one for None, or None when there is no such.

        Raises :class:`ApiError` 503 for one that is awaited.
        """
        found = self._models.get(name)
        if found is None and name in self._awaited:
            raise ApiError.of(
                "engine_unavailable",
                "What serves this model has not answered yet: try again later.",
                retry_after=RETRY_AFTER,
            )
        return found

    def entries(self) -> tuple[Resolved, ...]:
        """All of them, the default one first."""
        return self._entries
