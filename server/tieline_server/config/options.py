"""Every setting of the server: its name, its default, its bounds, what it means.

A setting comes from a flag, else from the environment, else from the TOML file that ``--config``
names, else it has its default. The three names of a setting are one: ``held_timeout`` in the
file, ``TIELINE_HELD_TIMEOUT`` in the environment, ``--held-timeout`` on the command line.
docs/configuration.md lists them all, and a test compares it with this file.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tieline.errors import TielineError
from tieline_server.config.toml_tables import (
    OF_UPSTREAMS,
    OFF,
    STORES,
    Address,
    AddressOrOff,
    GuardSettings,
    ModelSettings,
    Origins,
    Price,
    Seconds,
    Store,
    Upstream,
    is_address,
    is_loopback,
    listed,
    meant,
    no_such,
    store_kind,
)

PREFIX: Final = "TIELINE_"
"""What every environment variable begins with."""

KIB: Final = 1024
MIB: Final = 1024 * 1024
MOST_OF_WEBSOCKET: Final = 16 * MIB
"""Where a message of WebSocket ends, whatever is allowed elsewhere."""
DAY: Final = 86_400.0
"""Seconds."""


class ConfigError(TielineError):
    """A setting is wrong; the message is one line, written for who starts the server."""


MEMORY: Final = "memory"
"""The store that is gone when the process ends."""

FLAGLESS: Final = frozenset({"guards", "models", "upstream_key"})
"""Settings that no flag has: tables, and what a list of processes must not show."""

OF_CLIENTS: Final = frozenset({"url", "api_key"})
"""Variables of ours that a client reads, and no server."""

_OF_KUBERNETES: Final = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT|_PORT$|_PORT_\d+_(TCP|UDP)")
"""What it sets for a service whose name begins with ours."""

UPSTREAM: Final = "upstream"
"""The engine that other servers are."""


class Config(BaseSettings):
    """The settings of one server process, checked. Build it with :meth:`load`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    config: Path | None = Field(None, description="TOML file with any of these settings.")
    engine: str = Field("llama", description="What samples: llama, scripted or upstream.")
    script: Path | None = Field(None, description="JSON rules of the scripted engine.")
    model: Path | None = Field(
        None, description="GGUF file of the llama engine, instead of the packaged model."
    )
    longest_string: int | None = Field(
        None,
        ge=0,
        description="Characters at which the llama engine ends strings that a schema leaves open; "
        "0 for nowhere. Unset: 256 with the packaged model, else 0.",
    )
    longest_list: int | None = Field(
        None,
        ge=0,
        description="Items at which it ends lists that a schema leaves open; 0 for nowhere. "
        "Unset: 8 with the packaged model, else 0.",
    )
    upstream: Upstream = Field(
        None,
        description="Base URL of an OpenAI-compatible server; of several replicas, "
        "with commas between them.",
    )
    upstream_model: str | None = Field(
        None, description="The upstream's model that answers where none is named."
    )
    upstream_key_file: Path | None = Field(
        None, description="File with the key that upstreams are given as a bearer token."
    )
    upstream_key: str | None = Field(
        None, repr=False, description="That key itself: in the environment or the file alone."
    )
    upstream_timeout: Seconds = Field(
        120.0, description="Seconds that an upstream has to accept, and again to begin an answer."
    )
    upstream_stall_timeout: Seconds = Field(
        60.0, description="Seconds that an answer of an upstream may stand still."
    )
    upstream_requests: int = Field(
        256, ge=1, description="Requests that each replica has at once; further ones wait."
    )
    models: Annotated[dict[str, ModelSettings], NoDecode] = Field(
        {}, description="Which models are served under which names; by default all of the engine's."
    )
    guards: Annotated[dict[str, GuardSettings], NoDecode] = Field(
        {}, description="What reads input and output; by default nothing does."
    )
    grpc: Address = Field(
        "127.0.0.1:50051", description="HOST:PORT that gRPC listens on; port 0 picks a free one."
    )
    http: AddressOrOff = Field(
        "127.0.0.1:8080", description="HOST:PORT that HTTP and WebSocket listen on, or off."
    )
    profile: Literal["openai", "open-responses"] = Field(
        "openai", description="Which API is served: openai or open-responses."
    )
    websocket: bool = Field(True, description="WebSocket on the port of HTTP.")
    deflate: bool = Field(
        False, description="Whether permessage-deflate is agreed to when a client offers it."
    )
    max_age: Seconds = Field(
        3600.0, description="Seconds that a WebSocket may live; what runs then ends first."
    )
    allowed_origins: Origins = Field(
        None, description="Origins that a browser may come from, with commas between them."
    )
    workers: int = Field(
        1, ge=1, le=256, description="Processes that serve; several need a --store that they share."
    )
    max_connections: int = Field(
        4096, ge=1, description="Connections that HTTP and WebSocket may have open together."
    )
    max_owner_connections: int = Field(
        1024,
        ge=1,
        description="WebSockets and creating HTTP requests that one owner may have open, "
        "in each process.",
    )
    max_calls: int = Field(512, ge=1, description="Calls that gRPC may have open together.")
    max_owner_calls: int = Field(
        128, ge=1, description="gRPC calls that one owner may have open, in each process."
    )
    store: Store = Field(
        MEMORY,
        description="Where responses and the ledger are kept: "
        f"{', '.join(kind.example for kind in STORES.values())}.",
    )
    store_ttl: Seconds = Field(
        30 * DAY, description="Seconds since its last use after which a stored response goes."
    )
    store_max_responses: int | None = Field(
        None,
        ge=1,
        description="Stored responses, past which the least recently used go; "
        "by default 10000 in memory, no bound in a database.",
    )
    store_max_bytes: int | None = Field(
        None,
        ge=1,
        description="Bytes of items and responses, bounded the same way; "
        "by default 268435456 in memory, no bound in a database.",
    )
    durability: Literal["normal", "full"] = Field(
        "normal",
        description="What a commit survives: normal is a killed process, full is a loss of power.",
    )
    store_patience: Seconds = Field(
        15.0,
        description="Seconds that a database may be silent before what needs it is refused.",
    )
    api_keys: Path | None = Field(
        None, description="TOML file of API keys; without it only loopback is served."
    )
    compaction: Literal["keep-tail", "summary"] = Field(
        "keep-tail",
        description="What is kept of folded history: keep-tail (its end) or the model's summary.",
    )
    seal_key: Path | None = Field(
        None, description="File of keys that seal what clients carry; without it one per server."
    )
    tls_cert: Path | None = Field(None, description="PEM certificate chain of the server.")
    tls_key: Path | None = Field(None, description="PEM private key of the server.")
    tls_client_ca: Path | None = Field(
        None, description="PEM certificates that a client's own must descend from (mTLS)."
    )
    reflection: bool = Field(
        default_factory=lambda settings: _reflects(settings),
        description="gRPC server reflection (v1 and v1alpha); by default only on loopback.",
    )
    grpc_ping_interval: Seconds = Field(
        10.0, description="Seconds between keepalive pings that a gRPC client may always send."
    )
    heartbeat: Seconds = Field(15.0, description="Seconds of silence before a heartbeat.")
    held_timeout: Seconds = Field(
        900.0, description="Seconds that a held turn waits for its tool outputs."
    )
    resume_window: Seconds = Field(
        120.0, description="Seconds that a resumable response outlives its connection, and its end."
    )
    write_timeout: Seconds = Field(
        30.0, description="Seconds that a write may be stuck before its connection ends."
    )
    drain_timeout: Seconds = Field(
        30.0, description="Seconds that running turns have to end after SIGTERM."
    )
    max_message_bytes: int = Field(
        32 * MIB, ge=1024, le=2**31 - 1, description="Size limit of one message from a client."
    )
    max_grpc_message_bytes: int = Field(
        4 * MIB,
        ge=1024,
        le=2**31 - 1,
        description="The same on gRPC, where the smaller one counts: each open call may hold one.",
    )
    max_active: int = Field(
        16,
        ge=1,
        description="Responses of one connection that sample side by side; further ones wait.",
    )
    max_lanes: int = Field(32, ge=1, description="Distinct lane names in the life of a connection.")
    max_queue: int = Field(64, ge=1, description="Creates that may wait behind others on a lane.")
    max_connection_bytes: int = Field(
        256 * MIB, ge=1, description="Bytes of history that one connection may hold in memory."
    )
    max_owner_bytes: int = Field(
        1024 * MIB, ge=1, description="Bytes of history in memory of all connections of one owner."
    )
    max_total_bytes: int = Field(
        2048 * MIB, ge=1, description="Bytes of history in memory of all connections together."
    )
    max_owner_incoming_bytes: int = Field(
        256 * MIB,
        ge=1,
        description="Bytes of one owner's HTTP and WebSocket messages that are still coming.",
    )
    max_total_incoming_bytes: int = Field(
        512 * MIB, ge=1, description="Bytes of all such messages together."
    )
    max_owner_queue_bytes: int = Field(
        256 * MIB,
        ge=1,
        description="Bytes of one owner's requests that wait behind others, and steers.",
    )
    max_total_queue_bytes: int = Field(
        512 * MIB, ge=1, description="Bytes of all such requests and steers together."
    )
    max_resume_bytes: int = Field(
        64 * MIB,
        ge=1,
        description="Bytes of events that one resumable response may keep in memory.",
    )
    max_total_resume_bytes: int = Field(
        512 * MIB,
        ge=1,
        description="Bytes of events in memory of all resumable responses together.",
    )
    ignored: Literal["warn", "refuse"] = Field(
        "warn",
        description="What a create gets that has unknown members or tools which nothing runs: "
        "warn, refuse.",
    )
    merge: Literal["auto", "never"] = Field(
        "auto", description="Whether deltas that a slow reader has not taken may join: auto, never."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="Log lines on stderr: auto is console on a terminal, else json."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe log line that is written; a turn's is info."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags before the environment before the file."""
        flags = init_settings()
        path = flags.get("config") or os.environ.get(PREFIX + "CONFIG")
        settings = _read_file(Path(path)) if path else {}
        return init_settings, env_settings, InitSettingsSource(settings_cls, settings)

    @classmethod
    def load(cls, flags: Mapping[str, Any]) -> Self:
        """The settings with ``flags`` (by field name) on top; raises :class:`ConfigError`."""
        for variable in unknown_variables():
            if near := meant(variable.removeprefix(PREFIX).lower(), cls.model_fields):
                raise ConfigError(
                    f"{variable}: no setting has this name; did you mean {PREFIX}{near.upper()}?"
                )
        try:
            return cls(**flags)
        except ValidationError as error:
            raise ConfigError(_one_line(error, Given.of(flags))) from None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return all(is_loopback(address) for address in self.addresses.values())

    @property
    def addresses(self) -> dict[str, str]:
        """What the server listens on, by the setting's name."""
        named = {
            name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if is_address(field)
        }
        return {name: address for name, address in named.items() if address != OFF}

    @property
    def websocket_message_bytes(self) -> int:
        """The largest message that WebSocket takes."""
        return min(self.max_message_bytes, MOST_OF_WEBSOCKET)

    @property
    def grpc_message_bytes(self) -> int:
        """The largest message that gRPC takes."""
        return min(self.max_message_bytes, self.max_grpc_message_bytes)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that are used, each once."""
        named = [self.engine_of(table) for table in self.models.values()] or [self.engine]
        return tuple(dict.fromkeys(named))

    def engine_of(self, table: ModelSettings) -> str:
        """What samples for this model."""
        return UPSTREAM if table.upstream else table.engine or self.engine

    def key_of_upstream(self) -> str | None:
        """The upstream's key: from its file, else the setting. Raises :class:`ConfigError`."""
        return _key(self.upstream_key_file, self.upstream_key, "UPSTREAM_KEY")

    @staticmethod
    def key_of_guard(table: GuardSettings) -> str | None:
        """A remote guard's key, from its file. Raises :class:`ConfigError`."""
        return _key(table.key_file, None, "")

    def guards_of(self, table: ModelSettings) -> tuple[str, ...]:
        """Names of the guards that a model has."""
        return tuple(self.guards) if table.guards is None else table.guards

    @property
    def origins(self) -> frozenset[str]:
        """The origins that a browser may come from."""
        return frozenset(listed(self.allowed_origins or ""))

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, address in self.addresses.items():
            if self.api_keys is None and not is_loopback(address):
                raise ValueError(
                    f"{flag(name)} {address} can be reached from elsewhere and needs --api-keys; "
                    "without keys only loopback (127.0.0.1, [::1]) is served"
                )
        for (one, address), (other, same) in combinations(self.addresses.items(), 2):
            if address == same and not address.endswith(":0"):
                raise ValueError(
                    f"{flag(one)} and {flag(other)} are both {address}: each needs its own"
                )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key come together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
        if self.workers > 1 and not store_kind(self.store).shared:
            raise ValueError(
                f"--workers {self.workers} needs a --store that they share, such as "
                f"sqlite:///PATH: {self.store} is of one process"
            )
        self._check_names()
        self._check_engines()
        self._check_guards()
        return self

    def _check_names(self) -> None:
        for name, table in self.models.items():
            for each in (name, *table.aliases):
                if not each.strip() or not each.isprintable():
                    raise ValueError(f"models: {each[:64]!r} is no name for a model")

    def _check_guards(self) -> None:
        for name, table in self.models.items():
            for guard in table.guards or ():
                if guard not in self.guards:
                    raise ValueError(f"models.{name}.guards: there is no guard '{guard}'")

    def _check_engines(self) -> None:
        for name, value, engine in (
            ("script", self.script, "scripted"),
            ("model", self.model, "llama"),
            ("longest_string", self.longest_string, "llama"),
            ("longest_list", self.longest_list, "llama"),
            ("upstream", self.upstream, UPSTREAM),
        ):
            if value is not None and engine not in self.engines:
                raise ValueError(f"{flag(name)} needs --engine {engine}")
        self._check_upstreams()
        alone = [table for table in self.models.values() if not table.upstream]
        shared = any(self.engine_of(table) == UPSTREAM for table in alone)
        if self.upstream is None and (shared or (not self.models and self.engine == UPSTREAM)):
            raise ValueError("--engine upstream needs --upstream, the URL of its server")

    def _check_upstreams(self) -> None:
        """Refuses settings of upstreams where no model asks one: they would have no effect."""
        fields = type(self).model_fields
        for name in fields:
            # The key alone may stand in an environment that several servers have.
            ours = name.startswith("upstream_") and not name.startswith("upstream_key")
            said = ours and getattr(self, name) != fields[name].default
            if said and UPSTREAM not in self.engines:
                raise ValueError(f"{flag(name)} needs --engine {UPSTREAM}")
        if self.upstream_model is not None and self.upstream is None:
            raise ValueError("--upstream-model needs --upstream, whose model it is")
        for name, table in self.models.items():
            engine = self.engine_of(table)
            if table.upstream and table.engine not in (None, UPSTREAM):
                raise ValueError(f"models.{name}.upstream: {table.engine} asks no upstream")
            for key in OF_UPSTREAMS:
                if engine != UPSTREAM and getattr(table, key) is not None:
                    raise ValueError(f"models.{name}.{key}: the engine is {engine}, no upstream")


def _key(path: Path | None, key: str | None, variable: str) -> str | None:
    """A key of ours for another server, from a file or as it is; raises :class:`ConfigError`."""
    if path is not None:
        try:
            key = path.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        except UnicodeError:
            key = ""
    if key is not None and not (key.isascii() and key.isprintable() and key and " " not in key):
        raise ConfigError(
            f"{path or PREFIX + variable}: it holds no key, which is one line of ASCII"
        )
    return key


def flag(name: str) -> str:
    """A setting's name on the command line.

    >>> flag("held_timeout")
    '--held-timeout'
    """
    return "--" + name.replace("_", "-")


def urls_of(upstream: str) -> list[str]:
    """The URLs of a setting ``upstream``.

    >>> urls_of("http://a/v1, http://b/v1")
    ['http://a/v1', 'http://b/v1']
    """
    return listed(upstream)


def _reflects(settings: Mapping[str, Any]) -> bool:
    return is_loopback(settings["grpc"])


def _read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file; raises :class:`ConfigError`."""
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    unknown = sorted(settings.keys() - Config.model_fields.keys())
    if unknown:
        raise ConfigError(f"{path}: {unknown[0]}: {no_such(unknown[0], Config.model_fields)}")
    return settings


def unknown_variables() -> list[str]:
    """Variables that begin as ours do and are none."""
    known = {*Config.model_fields, *OF_CLIENTS}
    return sorted(
        name
        for name, value in os.environ.items()
        if name.startswith(PREFIX)
        and value
        and name.removeprefix(PREFIX).lower() not in known
        and not _OF_KUBERNETES.search(name)
    )


class Given(NamedTuple):
    """Where settings were given: what is wrong is blamed on that."""

    flags: Mapping[str, Any]
    file: Mapping[str, Any]
    path: Path | None

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> Self:
        """As they are now."""
        path = flags.get("config") or os.environ.get(PREFIX + "CONFIG")
        return cls(flags, _read_file(Path(path)) if path else {}, Path(path) if path else None)

    def __call__(self, name: str, rest: str = "") -> str:
        """A setting as it was given; one that was not given as its flag. ``rest``: of a table."""
        if name in self.flags:
            return (name if name in FLAGLESS else flag(name)) + rest
        if os.environ.get(PREFIX + name.upper()):
            return PREFIX + name.upper() + rest
        if name in self.file:
            return f"{self.path}: {name}{rest}"
        return (name if name in FLAGLESS else flag(name)) + rest

    def named(self, message: str) -> str:
        """A message that speaks of flags, with each setting as it was given."""
        return _FLAG.sub(lambda found: self._named(found[0]), message)

    def _named(self, word: str) -> str:
        name = word.removeprefix("--").replace("-", "_")
        return self(name) if name in Config.model_fields else word


_FLAG: Final = re.compile(r"--[a-z][a-z-]*[a-z]")
_TABLES: Final = {"models": (ModelSettings, Price), "guards": (GuardSettings,)}


def _one_line(error: ValidationError, given: Given) -> str:
    problems = []
    for each in error.errors(include_url=False, include_context=False):
        if each["type"] == "default_factory_not_called":
            continue  # It waits for another setting, whose own problem is in the list.
        message = each["msg"].removeprefix("Value error, ")
        name, *rest = map(str, each["loc"] or [""])
        if each["type"] == "extra_forbidden" and rest:
            known = [field for table in _TABLES[name] for field in table.model_fields]
            message = no_such(rest[-1], known)
        where = given(name, "".join(f".{part}" for part in rest)) if name else ""
        problems.append(f"{where}: {message}" if where else given.named(message))
    return "; ".join(problems)
