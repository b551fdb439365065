"""Which model a name means, and which engine serves it."""

from collections.abc import Iterable

from tieline.errors import TielineError
from tieline_server.core.effects import Resolved


class RoutingError(TielineError):
    """The models cannot be told apart; the message is one line, for who starts the server."""


class ModelCatalog:
    """The models of all engines by name; the first one is the default.

    ``aliases`` are further names: (alias, name). Raises :class:`RoutingError` when two models
    have the same name, or when there is none.

    >>> ModelCatalog([Resolved(model="small", engine="llama")]).resolve(None).model
    'small'
    """

    def __init__(self, models: Iterable[Resolved], aliases: Iterable[tuple[str, str]] = ()) -> None:
        self._models: dict[str | None, Resolved] = {}
        for model in models:
            if model.model in self._models:
                raise RoutingError(f"more than one engine serves a model named '{model.model}'")
            self._models.setdefault(None, model)
            self._models[model.model] = model
        if not self._models:
            raise RoutingError("no engine serves a model")
        self._entries = tuple(each for name, each in self._models.items() if name is not None)
        for alias, name in aliases:
            if alias in self._models:
                raise RoutingError(f"more than one model has the name '{alias}'")
            self._models[alias] = self._models[name]

    def resolve(self, name: str | None) -> Resolved | None:
        """The model of this name, the default one for None, or None when there is no such."""
        return self._models.get(name)

    def entries(self) -> tuple[Resolved, ...]:
        """All of them, the default one first."""
        return self._entries
