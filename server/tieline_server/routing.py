"""Which model a name means, and which engine serves it."""

from collections.abc import Iterable

from tieline.errors import TielineError
from tieline_server.core.effects import Resolved


class RoutingError(TielineError):
    """The models cannot be told apart; the message is one line, for who starts the server."""


class ModelCatalog:
    """The models of all engines by name; the first one is the default.

    Raises :class:`RoutingError` when two models have the same name, or when there is none.

    >>> ModelCatalog([Resolved(model="small", engine="llama")]).resolve(None).model
    'small'
    """

    def __init__(self, models: Iterable[Resolved]) -> None:
        self._models: dict[str | None, Resolved] = {}
        for model in models:
            if model.model in self._models:
                raise RoutingError(f"more than one engine serves a model named '{model.model}'")
            self._models.setdefault(None, model)
            self._models[model.model] = model
        if not self._models:
            raise RoutingError("no engine serves a model")

    def resolve(self, name: str | None) -> Resolved | None:
        """The model of this name, the default one for None, or None when there is no such."""
        return self._models.get(name)
