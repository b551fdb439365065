"""Where responses, the journal and the ledger are kept: a module or folder for each kind of store.

A new kind is a module or folder here that is a :class:`StorageModule`, and a line in
:data:`tieline_server.config.toml_tables.STORES`.
"""

from contextlib import AsyncExitStack
from importlib import import_module
from typing import cast

from tieline_server.config import Config
from tieline_server.config.toml_tables import store_kind
from tieline_server.storage.base import Ledger, Outages, Storage, StorageModule


async def open_storage(config: Config, stack: AsyncExitStack, *, outages: Outages) -> Storage:
    """The storage of the settings, as it was left; ``stack`` closes it.

    Nothing of a kind is imported before. Raises :class:`ConfigError`.
    """
    storage = await _module(config).open_storage(config, stack, outages=outages)
    for part in (storage.ledger, storage.store, storage.journal):
        stack.push_async_callback(part.close)
    return storage


async def open_ledger(config: Config, stack: AsyncExitStack) -> Ledger:
    """The ledger of the settings' storage by itself, as it was left; ``stack`` closes it."""
    ledger = await _module(config).open_ledger(config, stack)
    stack.push_async_callback(ledger.close)
    return ledger


def _module(config: Config) -> StorageModule:
    return cast("StorageModule", import_module(store_kind(config.store).module))
