"""What a turn needs before it can run: its model, its settings, its parent, its input."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import UNSET, Raw

from tieline.errors import ApiError
from tieline.items import SEALABLE, Item
from tieline.requests import Append
from tieline_server.core.create import ignored
from tieline_server.core.create.profile import unsupported
from tieline_server.core.create.settings import Settings, settle
from tieline_server.core.effects import Prompt
from tieline_server.core.history import input_checks, sealed
from tieline_server.core.history.chain import ChainHead, ChainNode
from tieline_server.core.history.input_items import read_input
from tieline_server.core.turn.turn import Turn
from tieline_server.core.values import Catalog, Principal, Resolved

ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
"""The member of ``include`` that asks for sealed reasoning."""


def resolve(catalog: Catalog, model: str | None, principal: Principal) -> Resolved:
    """The model of this name; raises :class:`ApiError` 404 or 403."""
    resolved = catalog.resolve(model)
    if resolved is None:
        raise ApiError.of(
            "model_not_found",
            f"The model '{(model or '')[:128]}' does not exist.",
            param="model",
        )
    if principal.models is not None and resolved.model not in principal.models:
        raise ApiError.of(
            "model_not_allowed",
            f"This key may not use the model '{resolved.model}'.",
            param="model",
        )
    return resolved


def ground(turn: Turn) -> None:
    """Resolves the model and settles the settings; raises :class:`ApiError` for what is wrong."""
    # A steer's successor has the settings of the response before it.
    if turn.settings is not None:
        turn.resolved = resolve(turn.host.catalog, turn.settings.model, turn.principal)
    elif turn.follows_latest:
        _follow_latest(turn)
    else:
        turn.resolved = resolve(turn.host.catalog, turn.request.model, turn.principal)
        turn.settings = _settings(turn, turn.resolved)
    turn.output.foreign = turn.host.profile.foreign_items
    # Only where it was asked for: a seal is as long as the thought, and comes back each time.
    if turn.settings is not None and ENCRYPTED_REASONING in turn.settings.include:
        turn.output.seal = partial(turn.host.sealer.seal, turn.principal.owner)


def _settings(turn: Turn, resolved: Resolved) -> Settings:
    profile = turn.host.profile
    profile.check(turn.request)
    settings = settle(
        turn.request,
        turn.recall,
        model=resolved.model,
        defaults=resolved.defaults,
    )
    # What nothing acts on is a warning, or by a setting of the server an error.
    if settings.warnings and not turn.host.limits.ignores:
        raise ignored.refusal(settings.warnings[0])
    others = (tool for tool in settings.tools.offered if tool.type != "function")
    if not profile.custom_tools and any(tool.client_run for tool in others):
        raise unsupported("tools")
    return settings


def _follow_latest(turn: Turn) -> None:
    head = turn.host.memory.latest(turn.lane)
    if head is None or head.owner != turn.principal.owner or head.settings is None:
        raise ApiError.of("nothing_to_append", "This lane has no response to append to.")
    turn.pinned = head
    settings = head.settings.following()
    turn.settings = settings.choosing(turn.request.tool_choice, turn.recall)
    turn.resolved = resolve(turn.host.catalog, turn.settings.model, turn.principal)


def parent_of(turn: Turn) -> ChainHead | None:
    """The response that a turn continues, where the connection knows it; held from here on.

    Its lane may go on while the store is asked for items.
    """
    named = turn.request.previous_response_id
    if turn.pinned is None and named is not None:
        head = turn.host.memory.find(named)
        if head is not None and head.owner == turn.principal.owner:
            turn.pinned = head
    return turn.pinned


def parent_not_found(named: str) -> ApiError:
    """The response that a create continues is not the owner's, is not kept, or has failed."""
    return ApiError.of(
        "previous_response_not_found",
        f"Previous response with id '{named[:128]}' not found.",
        param="previous_response_id",
    )


def input_after(turn: Turn, parent: ChainHead | None) -> list[Item]:
    """The turn's input, now that it is known which response it follows; raises 400."""
    items = input_of(turn)
    turn.parent = parent.node if parent else None
    if turn.parent is not None:
        reveal(turn, turn.parent)
    return items


def input_of(turn: Turn) -> list[Item]:
    """The create's own input, then what a steer adds; raises :class:`ApiError` 400."""
    raw = turn.request.input
    own = [] if raw is UNSET else read(turn, raw)
    # The steer came later than what it is added to.
    return [*own, *turn.extra]


def answer_of(turn: Turn, append: Append) -> tuple[list[Item], Settings]:
    """What an append adds to a held turn, and its settings from here on.

    Raises :class:`ApiError` 400, or 429 where it does not fit.
    """
    assert turn.node is not None
    assert turn.settings is not None
    if append.input is UNSET:
        raise ApiError.of(
            "missing_required_parameter", "Missing required parameter: 'input'.", param="input"
        )
    settings = turn.settings.choosing(append.tool_choice, turn.recall)
    items = follow(turn, read(turn, append.input), turn.node, {}, settings=settings)
    turn.host.memory.admit(turn.principal.owner, sum(len(item.raw) for item in items))
    return items, settings


def follow(
    turn: Turn,
    new: Sequence[Item],
    before: ChainNode | None,
    found: Mapping[str, Item],
    *,
    settings: Settings | None = None,
) -> list[Item]:
    """``new`` as it may follow ``before``: references resolved, what is sealed opened.

    What the chain has already is left out. ``settings`` are those from here on, by default the
    turn's. Raises :class:`ApiError` 400.
    """
    sealer, owner = turn.host.sealer, turn.principal.owner
    # In this order: a reference may name a repeat, and only what is opened can be checked.
    named = input_checks.without_repeats(input_checks.dereference(new, before, found), before)
    opened = [
        sealed.opened(item, sealer, owner) if item.type in SEALABLE else item for item in named
    ]
    input_checks.check(opened, before, unanswered=turn.host.profile.unanswered)
    settings = settings or turn.settings
    # The choice waits for a tool that only the input could bring; now all of it is known.
    if settings is not None and settings.unmet:
        settings.meet([*(before.context() if before is not None else ()), *opened])
    return opened


def reveal(turn: Turn, chain: ChainNode) -> None:
    """Opens what a store gave back sealed; raises :class:`ApiError` 400."""
    # A chain that was made on a connection is open from the start.
    if chain.closed:
        sealer, owner = turn.host.sealer, turn.principal.owner
        chain.reveal(lambda item: sealed.opened_again(item, sealer, owner))


def read(turn: Turn, raw: Raw) -> list[Item]:
    """The items of some input, counted as work; raises :class:`ApiError` 400."""
    items = read_input(raw)
    turn.host.work.validate += sum([len(item.raw) for item in items])
    return items


def prompt_of(turn: Turn) -> Prompt:
    """What the engine is asked to go on from, now that all is settled."""
    assert turn.resolved is not None
    assert turn.settings is not None
    assert turn.node is not None
    return Prompt(
        response_id=turn.id,
        model=turn.resolved.served,
        chain=turn.node,
        settings=turn.settings,
        session=turn.host.session(turn.lane),
        owner=turn.principal.owner,
        max_output_tokens=turn.budget(),
        work=turn.host.work,
    )
