"""Runs the scenarios with the client of each language whose toolchain is here.

``make interop`` is this module as a command: it prints one table, which docs/clients.md repeats,
and exits 1 where a scenario failed.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from tests.interop.targets import targets

ROOT: Final = Path(__file__).parents[2]
SCENARIOS: Final = Path(__file__).parent / "scenarios.json"
TIMEOUT: Final = 900.0
"""Seconds after which a runner that should have ended is given up; the first one builds, too."""


class Language(Struct, frozen=True):
    """A client, and what has to be here for it."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    quick: bool = True
    """Whether it is built from nothing within a minute."""

    @property
    def lacks(self) -> list[str]:
        """What is not here: programs, or the client itself, which the sdist leaves out."""
        wanted = (str(ROOT / self.command[0]), *self.needs)
        return [Path(name).name for name in wanted if shutil.which(name) is None]


LANGUAGES: Final = {
    "python": Language("Python", (sys.executable, "-m", "tests.interop.python_runner")),
    "go": Language("Go", ("client/go/interop.sh",), ("go",)),
    "java": Language("Java", ("client/java/interop.sh",), ("java", "mvn"), quick=False),
    "rust": Language("Rust", ("client/rust/interop.sh",), ("cargo",), quick=False),
    "typescript": Language("TypeScript", ("client/typescript/interop.sh",), ("node", "npm")),
}


class Outcome(Struct, frozen=True):
    """How one scenario went. ``ok`` is None where the client has nothing for it."""

    scenario: str
    ok: bool | None
    why: str = ""


def names() -> list[str]:
    """The scenarios, in their order."""
    return [each["name"] for each in json.loads(SCENARIOS.read_text())["scenarios"]]


async def run(language: Language, only: str | None = None) -> list[Outcome]:
    """Runs one client against servers of its own; a scenario without a line has failed."""
    with tempfile.TemporaryDirectory() as folder:
        async with targets(Path(folder)) as given:
            file = Path(folder) / "targets.json"
            file.write_text(json.dumps(given))
            said, code = await _output(language, file, only)
    seen: dict[str, Any] = {each["scenario"]: each for each in said}
    missing = {"ok": False, "why": f"the runner said nothing of it (exit {code})"}
    return [
        Outcome(name, found["ok"], found.get("why", ""))
        for name in ([only] if only else names())
        for found in (seen.get(name, missing),)
    ]


async def _output(language: Language, file: Path, only: str | None) -> tuple[list[Any], int | None]:
    process = await asyncio.create_subprocess_exec(
        *language.command,
        str(SCENARIOS),
        str(file),
        *([only] if only else []),
        cwd=ROOT,
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return [json.loads(line) for line in out.splitlines() if line.strip()], process.returncode


def table(outcomes: dict[str, list[Outcome]]) -> str:
    """The scenarios by language, as a table of Markdown."""
    words = {True: "yes", False: "NO", None: "-"}
    heads = [LANGUAGES[name].name for name in outcomes]
    rows = [["scenario", *heads], ["---"] * (len(heads) + 1)]
    for at, scenario in enumerate(names()):
        rows.append([f"`{scenario}`", *(words[each[at].ok] for each in outcomes.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


async def run_all(chosen: Iterable[str]) -> dict[str, list[Outcome]]:
    """Runs these languages side by side: most of the time they wait on quiet connections."""
    named = list(chosen)
    return dict(zip(named, await asyncio.gather(*(run(LANGUAGES[n]) for n in named)), strict=True))


async def main(chosen: list[str]) -> int:
    """Runs the chosen languages and prints the table; returns the exit status."""
    here = [name for name in chosen if not LANGUAGES[name].lacks]
    for name in chosen:
        if lacks := LANGUAGES[name].lacks:
            print(f"{LANGUAGES[name].name}: not run, {' and '.join(lacks)} not found", flush=True)
    outcomes = await run_all(here)
    print(table(outcomes))
    failed = [(name, each) for name, found in outcomes.items() for each in found if not each.ok]
    for name, each in failed:
        print(f"{LANGUAGES[name].name}, {each.scenario}: {each.why}")
    return int(any(each.ok is False for _, each in failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs the interop scenarios.")
    parser.add_argument("languages", nargs="*", choices=[*LANGUAGES, []], default=[])
    sys.exit(asyncio.run(main(parser.parse_args().languages or [*LANGUAGES])))
