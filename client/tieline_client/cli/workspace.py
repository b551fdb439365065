"""The tools of ``tieline agent``: a file reader that stays in its folder, a shell that asks.

Every path that the model names is resolved first and must lie below the root; it is then opened
one component at a time without following links, so that nothing can be swapped in between.
"""

import asyncio
import os
import signal
import stat
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

Ask = Callable[[str], Awaitable[bool]]
"""Asks the user a question; whether the answer was yes."""

MAX_CHARS: Final = 16_000
"""Characters that a tool hands to the model at most."""
COMMAND_TIMEOUT: Final = 120.0
"""Seconds after which a command is killed."""


class Refused(Exception):
    """The workspace does not do that; the message is for the model."""


class Workspace:
    """A folder that a model may look at, and in which it may run what the user allows.

    ``ask`` is called before every command, and before a hidden file is read unless
    ``read_hidden``: those often hold secrets.
    """

    def __init__(self, root: Path, *, ask: Ask, read_hidden: bool = False) -> None:
        self._root = root.resolve(strict=True)
        self._ask = ask
        self._read_hidden = read_hidden

    async def read_file(self, path: str, first_line: int = 1, lines: int = 200) -> str:
        """Reads a text file, or lists a folder, below the project's root. Changes nothing.

        Args:
            path: The file or folder, relative to the root; "." is the root.
            first_line: The first line to read, from 1.
            lines: How many lines to read.
        """
        inside = self._inside(path)
        hidden = any(part.startswith(".") for part in inside.parts)
        if hidden and not self._read_hidden and not await self._ask(f"Read {inside}?"):
            raise Refused(f"the user does not let you read {path}")
        return await asyncio.to_thread(self._read, inside, first_line, lines)

    async def run_command(self, command: str) -> str:
        """Runs a shell command in the project's root, if the user agrees.

        Args:
            command: The command, for /bin/sh.
        """
        if not await self._ask(f"Run in {self._root}: {command}"):
            raise Refused("the user does not let you run this command")
        return await _run(command, self._root)

    def _inside(self, path: str) -> Path:
        """The path relative to the root, links resolved; raises :class:`Refused`."""
        try:
            resolved = (self._root / path).resolve(strict=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise Refused(f"{path!r} cannot be read: {_why(error)}") from error
        if not resolved.is_relative_to(self._root):
            raise Refused(f"{path!r} is outside of the root")
        return resolved.relative_to(self._root)

    def _read(self, inside: Path, first_line: int, lines: int) -> str:
        with ExitStack() as stack:
            folder = -1
            for part in (str(self._root), *inside.parts):
                where = {"dir_fd": folder} if folder >= 0 else {}
                # O_NONBLOCK: opening a pipe must not wait for its other end.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                try:
                    folder = os.open(part, flags, **where)
                except OSError as error:
                    raise Refused(f"{str(inside)!r} cannot be read: {_why(error)}") from error
                stack.callback(os.close, folder)
            mode = os.fstat(folder).st_mode
            if stat.S_ISDIR(mode):
                return _listing(folder)
            if not stat.S_ISREG(mode):
                raise Refused(f"{str(inside)!r} is no file and no folder")
            return _lines(folder, first_line, lines)


def _listing(folder: int) -> str:
    with os.scandir(folder) as entries:
        names = sorted(f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name for e in entries)
    return _cut("\n".join(names)) or "(empty)"


def _lines(file: int, first_line: int, lines: int) -> str:
    said: list[str] = []
    size = 0
    with open(file, encoding="utf-8", errors="replace", closefd=False) as text:
        number = 0
        # Pieces of a bounded size: a file may be one endless line.
        while size < MAX_CHARS and (piece := text.readline(MAX_CHARS)):
            number += not said or said[-1].endswith("\n") or number < first_line
            if number >= first_line + lines:
                break
            if number >= first_line:
                said.append(piece)
                size += len(piece)
    return _cut("".join(said)) or "(no such lines)"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "\n(cut)"


def _why(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else "not a path"


async def _run(command: str, root: Path) -> str:
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=root,
        env={name: value for name, value in os.environ.items() if name != "TIELINE_API_KEY"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT):
            output = await _head(process)
            status = await process.wait()
    except TimeoutError:
        return f"killed after {COMMAND_TIMEOUT:g} s"
    finally:
        # Also what the command has left behind.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return _cut(f"exit status {status}\n{output.decode(errors='replace')}")


async def _head(process: asyncio.subprocess.Process) -> bytes:
    """The beginning of what a command prints; the rest is read and dropped."""
    assert process.stdout is not None
    kept = bytearray()
    while piece := await process.stdout.read(65536):
        kept += piece[: 4 * MAX_CHARS - len(kept)]
    return bytes(kept)


async def ask_on_terminal(question: str) -> bool:
    """Asks on the terminal; no answer is no. The connection's heartbeats go on meanwhile."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str] = loop.create_future()

    def settle(text: str) -> None:
        if not answer.done():
            answer.set_result(text)

    def wait() -> None:
        try:
            text = input(f"{question}\nAllow? [y/N] ")
        except EOFError:
            text = ""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, text)

    # A daemon: a question without an answer must not hold up an interrupted command.
    threading.Thread(target=wait, name="tieline-question", daemon=True).start()
    return (await answer).strip().lower() in ("y", "yes")
