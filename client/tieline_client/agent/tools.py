"""Plain typed functions as tools: the schema from the signature, the words from the docstring."""

import asyncio
import contextvars
import inspect
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from tieline.errors import TielineError

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SECTION: Final = re.compile(r"([A-Z][A-Za-z ]*):\s*\Z")
_ENTRY: Final = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


class ToolDefinitionError(TielineError, TypeError):
    """A function cannot be offered as a tool; the message says why."""


class ArgumentsError(TielineError):
    """The model's arguments do not match the tool's schema; the message says where."""


class Tool(Struct, frozen=True, kw_only=True):
    """A function that a model may call.

    >>> def add(a: int, b: int = 0) -> int:
    ...     '''Adds two numbers.
    ...
    ...     Args:
    ...         a: The first one.
    ...     '''
    ...     return a + b
    >>> Tool.of(add).parameters["required"]
    ['a']
    """

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments, without references."""
    function: Callable[..., Any]
    arguments: type[Struct]
    """What the arguments are decoded to."""
    side_effect: bool = False
    """Whether running it twice does harm: each call of it then runs at most once."""

    @classmethod
    def of(
        cls, function: "Callable[..., Any] | Tool", *, side_effect: bool | None = None
    ) -> "Tool":
        """The tool of a function; raises :class:`ToolDefinitionError`.

        Parameters may be str, int, float, bool, list, dict, Literal, Optional, Enum, TypedDict,
        dataclasses and what msgspec adds to these; each needs an annotation.
        """
        if isinstance(function, Tool):
            same = side_effect in (None, function.side_effect)
            return function if same else replace(function, side_effect=bool(side_effect))
        name = getattr(function, "__name__", "")
        if not _NAME.match(name):
            raise ToolDefinitionError(f"{function!r} has no name that can be a tool's")
        description, words = _docstring(inspect.getdoc(function) or "")
        try:
            arguments, defaults = _arguments(function, name, words)
            parameters = _inline(msgspec.json.schema(arguments))
        except (TypeError, NameError, ValueError) as error:
            raise ToolDefinitionError(f"{name} cannot be a tool: {error}") from error
        parameters.pop("title", None)
        for parameter, default in defaults.items():
            parameters["properties"][parameter]["default"] = default
        return cls(
            name=name,
            description=description,
            parameters=parameters,
            function=function,
            arguments=arguments,
            side_effect=bool(side_effect),
        )

    @property
    def definition(self) -> dict[str, Any]:
        """The entry of this tool in a create's ``tools``."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": False,
        }

    async def call(self, arguments: str, *, executor: Executor | None = None) -> str:
        """Runs the function with JSON arguments; a plain function runs in a thread.

        Returns a string as it is and anything else as JSON. Raises :class:`ArgumentsError`, and
        whatever the function raises.
        """
        members = self._decode(arguments)
        if inspect.iscoroutinefunction(self.function):
            value = await self.function(**members)
        else:
            loop, context = asyncio.get_running_loop(), contextvars.copy_context()
            work = partial(context.run, self.function, **members)
            value = await loop.run_in_executor(executor, work)
            if isinstance(value, Awaitable):
                value = await value
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    def _decode(self, arguments: str) -> dict[str, Any]:
        try:
            given = msgspec.json.decode(arguments or "{}", type=self.arguments)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ArgumentsError(
                f"the arguments do not match the schema of {self.name}: {error}"
            ) from error
        members = ((name, getattr(given, name)) for name in given.__struct_fields__)
        return {name: value for name, value in members if value is not UNSET}


def definitions(tools: list[Tool]) -> Raw:
    """The ``tools`` of a create, as the same bytes every time (a connection compares them)."""
    return Raw(msgspec.json.encode([tool.definition for tool in tools]))


def _arguments(
    function: Callable[..., Any], name: str, words: dict[str, str]
) -> tuple[type[Struct], dict[str, Any]]:
    """The struct of a function's parameters, and the defaults that JSON can express."""
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"parameter {parameter} cannot be given by name")
        if parameter.name not in hints:
            raise TypeError(f"parameter {parameter.name} has no annotation")
        kind = hints[parameter.name]
        if parameter.name in words:
            kind = Annotated[kind, Meta(description=words[parameter.name])]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
            continue
        # Not given stays not given, so that Python's own default applies.
        fields.append((parameter.name, kind | UnsetType, UNSET))
        try:
            defaults[parameter.name] = msgspec.to_builtins(parameter.default)
        except TypeError:
            continue
    struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    return struct, defaults


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with every reference replaced by what it names: engines need not follow any."""
    parts: dict[str, Any] = schema.pop("$defs", {})

    def expand(node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [expand(each, path) for each in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            part = str(node["$ref"]).removeprefix("#/$defs/")
            if part in path:
                raise TypeError(f"{part} contains itself")
            rest = {key: value for key, value in node.items() if key != "$ref"}
            return {**expand(parts[part], (*path, part)), **rest}
        return {key: expand(value, path) for key, value in node.items()}

    expanded: dict[str, Any] = expand(schema, ())
    return expanded


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a Google-style docstring says of the function, and of each argument."""
    about: list[str] = []
    words: dict[str, str] = {}
    section, entry = "", ""
    for line in text.splitlines():
        header = _SECTION.match(line)
        if header:
            section, entry = header[1], ""
        elif not section:
            about.append(line.strip())
        elif section in ("Args", "Arguments", "Parameters") and line.strip():
            indent = len(line) - len(line.lstrip())
            found = _ENTRY.match(line.strip()) if indent <= 4 else None
            if found:
                entry = found[1]
                words[entry] = found[2]
            elif entry:
                words[entry] = f"{words[entry]} {line.strip()}".strip()
    paragraphs = "\n".join(about).strip().split("\n\n")
    return "\n\n".join(part.replace("\n", " ") for part in paragraphs), words
