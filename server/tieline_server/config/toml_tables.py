"""The tables of the file of ``--config``, and the forms that values and names have to have."""

import ipaddress
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

_URL: Final = re.compile(
    r"https?://(?:\[[0-9A-Fa-f:.]+\]|[^\s/?#@,:\[\]]+)(?::(\d{1,5}))?(?:/[^\s?#@,]*)?"
)


def listed(value: str) -> list[str]:
    """The words of a list with commas.

    >>> listed("a, b,")
    ['a', 'b']
    """
    return [name.strip() for name in value.split(",") if name.strip()]


def _upstream(value: str | None) -> str | None:
    """What is wrong is not repeated: it may hold a password."""
    if value is not None and not (urls := listed(value)):
        raise ValueError("it names no URL")
    if value is not None and not all(map(_is_url, urls)):
        raise ValueError("it is no URL such as http://127.0.0.1:8000/v1, without a key")
    return value


def _is_url(url: str) -> bool:
    found = _URL.fullmatch(url)
    return found is not None and int(found[1] or 1) in range(1, 1 << 16)


Upstream = Annotated[str | None, AfterValidator(_upstream)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Mode = Literal["auto", "chat", "completions", "responses"]


def _origins(value: str | None) -> str | None:
    for origin in listed(value or ""):
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"'{origin}' is not an origin, such as https://example.com")
    return value


_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#,]+")


def split_address(address: str) -> tuple[str, int]:
    """``HOST:PORT`` in two; an IPv6 host stands in brackets. Raises :class:`ValueError`.

    >>> split_address("[::1]:50051")
    ('::1', 50051)
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    numeric = port.isascii() and port.isdigit() and int(port) <= 65535
    if not colon or not bare or not numeric or (":" in bare and bare == host):
        raise ValueError(f"'{address}' is not HOST:PORT")
    return bare, int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach ``HOST:PORT``."""
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _address(value: str) -> str:
    split_address(value)
    return value


OFF: Final = "off"
"""Stands for an address that nothing listens on."""


def _address_or_off(value: str) -> str:
    return OFF if value in ("", OFF) else _address(value)


class StoreKind(NamedTuple):
    """A kind of store: the addresses that name one, and the module that opens it."""

    form: str
    """Matches what ``--store`` says of it."""
    example: str
    """How that is written, for people."""
    module: str
    """A :class:`tieline_server.storage.base.StorageModule`."""
    imports: tuple[str, ...] = ()
    """Modules that it imports only when it opens a store."""
    shared: bool = True
    """Whether several processes may use it together, and one after another."""


STORES: Final[dict[str, StoreKind]] = {
    "memory": StoreKind("memory", "memory", "tieline_server.storage.memory", shared=False),
    "sqlite": StoreKind(
        r"sqlite:///[^?#]*[^?#/]",
        "sqlite:///PATH",
        "tieline_server.storage.sql",
        imports=("tieline_server.storage.sql.sqlite", "alembic.command"),
    ),
    "postgresql": StoreKind(
        r"postgres(?:ql)?://[^/?#]*/[^/?#]+(?:\?.*)?",
        "postgresql://USER:PASSWORD@HOST/DATABASE",
        "tieline_server.storage.sql",
        imports=("tieline_server.storage.sql.postgresql", "alembic.command"),
    ),
}
"""What a checked ``--store`` says up to its first colon -> the kind."""


def store_kind(store: str) -> StoreKind:
    """The kind of a checked ``--store``."""
    return STORES[store.partition(":")[0]]


def _store(value: str) -> str:
    """What is wrong is not repeated: an address holds a password."""
    for name, kind in STORES.items():
        if "\x00" not in value and re.fullmatch(kind.form, value):
            _, colon, place = value.partition(":")
            return name + colon + place
    raise ValueError(f"it is none of {', '.join(kind.example for kind in STORES.values())}")


Address = Annotated[str, AfterValidator(_address)]
AddressOrOff = Annotated[str, AfterValidator(_address_or_off)]


def is_address(field: FieldInfo) -> bool:
    """Whether a setting is an address that the server listens on."""
    checks = (_address, _address_or_off)
    return any(isinstance(each, AfterValidator) and each.func in checks for each in field.metadata)


Store = Annotated[str, AfterValidator(_store)]
Origins = Annotated[str | None, AfterValidator(_origins)]


def meant(name: str, known: Iterable[str]) -> str | None:
    """The setting that a name which is none may stand for."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=0.8)), None)


def no_such(name: str, known: Iterable[str]) -> str:
    """What is said of a name that no setting has."""
    near = meant(name, known)
    return "no setting has this name" + (f"; did you mean {near}?" if near else "")


class Price(BaseModel):
    """What a model costs, in whatever currency, per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0, allow_inf_nan=False)
    cached_input: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Of input that was in a cache; by default as any other."""
    output: float = Field(ge=0, allow_inf_nan=False)

    def of(self, *, input_tokens: int, cached_tokens: int, output_tokens: int) -> float:
        """What so many tokens cost; those that were cached are among the input.

        >>> Price(input=2, cached_input=0, output=8).of(
        ...     input_tokens=1_000_000, cached_tokens=500_000, output_tokens=250_000
        ... )
        3.0
        """
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = input_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached + output_tokens * self.output) / 1e6


class ModelSettings(BaseModel):
    """A table ``[models.NAME]``: a model as clients know it, and who serves it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str | None = Field(None, description="What samples; by default the setting `engine`.")
    model: str | None = Field(None, description="The engine's name of it; by default its first.")
    upstream: Upstream = Field(
        None, description="URLs of its own, instead of `upstream`; the engine is then upstream."
    )
    aliases: tuple[str, ...] = Field((), description="Other names of it.")
    reasoning_effort: str | None = Field(
        None,
        description="For creates that name no effort: low, high, or a word of its upstream's.",
    )
    max_output_tokens: int | None = Field(
        None, ge=1, description="For creates that set no limit of their own."
    )
    guards: tuple[str, ...] | None = Field(
        None, description="Names of the guards that it has; by default all."
    )
    upstream_mode: Mode | None = Field(
        None,
        description="How its upstream is asked: auto (by default), chat, completions, responses.",
    )
    upstream_state: bool | None = Field(
        None,
        description="Whether its upstream keeps responses, so that a turn sends only what is new.",
    )
    upstream_tokenizer: Path | None = Field(
        None, description="GGUF file of its model, which makes prompts of token ids."
    )
    price: Price | None = Field(
        None,
        description="Per million tokens: `{input = 2.0, cached_input = 0.5, output = 8.0}`; "
        "`tieline-server usage` then says what was spent, `/v1/capabilities` what it costs.",
    )


OF_UPSTREAMS: Final = ("upstream_mode", "upstream_state", "upstream_tokenizer")
"""What a model can say of its upstream alone."""


class GuardSettings(BaseModel):
    """A table ``[guards.NAME]``: a guard, and what it reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["pattern", "remote"] = Field(description="What reads: pattern or remote.")
    applies: tuple[Literal["input", "output"], ...] = Field(
        default=("input", "output"),
        min_length=1,
        description="What it reads: input, output, or both.",
    )
    message: str | None = Field(
        default=None,
        description="What a client hears where its input is refused, instead of our sentence.",
    )
    patterns: tuple[str, ...] = Field(
        default=(), description="pattern: what is flagged, in RE2's syntax."
    )
    file: Path | None = Field(
        default=None,
        description="pattern: file of further patterns, one a line; # begins a comment.",
    )
    url: Upstream = Field(
        default=None, description="remote: base URL of a server with OpenAI's /moderations."
    )
    model: str | None = Field(default=None, description="remote: the model that is asked for.")
    key_file: Path | None = Field(
        default=None, description="remote: file with its key, sent as a bearer token."
    )
    timeout: Seconds = Field(default=5.0, description="remote: seconds that a verdict may take.")
    on_error: Literal["closed", "open"] = Field(
        default="closed",
        description="remote: without a verdict nothing passes (closed) or everything (open).",
    )
    categories: tuple[str, ...] = Field(
        default=(), description="remote: the categories that count; by default whatever is flagged."
    )
    images: bool = Field(default=True, description="remote: whether it reads images of the input.")
    requests: int = Field(
        default=32, ge=1, description="remote: requests at once; further ones wait."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        foreign = _OF_PATTERN if self.kind == "remote" else _OF_REMOTE
        fields = type(self).model_fields
        # A worker is told every key, those that the file does not set as well.
        if misplaced := [n for n in sorted(foreign) if getattr(self, n) != fields[n].default]:
            raise ValueError(f"a {self.kind} guard has no '{misplaced[0]}'")
        if self.kind == "remote" and (self.url is None or "," in self.url):
            raise ValueError("a remote guard needs one 'url'")
        if self.kind == "pattern" and not self.patterns and self.file is None:
            raise ValueError("a pattern guard needs 'patterns' or a 'file'")
        return self


_OF_PATTERN: Final = frozenset({"patterns", "file"})
_OF_REMOTE: Final = frozenset(
    {"url", "model", "key_file", "timeout", "on_error", "categories", "images", "requests"}
)
