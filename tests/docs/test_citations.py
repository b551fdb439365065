"""What code, tests, schema and pages cite is there: clauses, pages and their headings, cases.

A clause is cited as ``wire.md 4.4``, a page as ``docs/protocol.md#errors``, a case by its id.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
FOLDERS: Final = ("client", "docs", "examples", "protos", "server", "tests")
KINDS: Final = frozenset({".py", ".pyi", ".proto"})

PAGES: Final = {
    path: path.read_text(encoding="utf-8")
    for path in (*DOCS.glob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING")))
}
"""Page -> its text."""

CODE: Final = {
    path: path.read_text(encoding="utf-8")
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*")
    # What this file makes up to be told apart is no citation.
    if path.suffix in KINDS and "_pb2" not in path.name and path != Path(__file__)
}
"""Source file -> its text."""

NUMBER: Final = r"\d+(?:\.\d+)*"
CLAUSE: Final = re.compile(rf"wire\.md[\s#]+({NUMBER}(?:(?:,| and| to)\s+{NUMBER})*)")
PAGE: Final = re.compile(r"(?<![\w./-])(?:docs/)?([\w-]+\.md)(?:#([\w-]+))?")
LINK: Final = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")
"""A link of a page, unless it leads to another host."""
CASE: Final = re.compile(r"\b([A-Z]{2})-(\d{2})(?: to \1-(\d{2}))?\b")
NAMED: Final = re.compile(r"\bdef test_([a-z]{2})_(\d{2})_")
ROW: Final = re.compile(
    r"^\| ([A-Z]{2}-\d{2}) \| .+ \| ((?:`tests/\S+`(?:, )?)+) \|$", re.MULTILINE
)
UNPUBLISHED: Final = re.compile(r"\bdesign\s*(?::|,|\d)", re.IGNORECASE)
"""A citation of notes that are not in this repository."""

CLAUSES: Final = [
    section or number
    for section, number in re.findall(
        rf"^(?:#+ ({NUMBER})\.? |\*\*({NUMBER})\*\* )", PAGES[DOCS / "wire.md"], re.MULTILINE
    )
]
"""The sections and clauses of docs/wire.md, as they stand there."""

ROWS: Final = ROW.findall(PAGES[DOCS / "cases.md"])
"""The rows of docs/cases.md: the id, and the tests that hold the case."""

CASES: Final = frozenset(case for case, _ in ROWS)
GROUPS: Final = frozenset(case[:2] for case in CASES)


def headings(page: str) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in found}


ANCHORS: Final = {path: headings(page) for path, page in PAGES.items()}


def clauses_in(text: str) -> Iterator[str]:
    """The clauses that a text cites."""
    for found in CLAUSE.finditer(text):
        yield from re.findall(NUMBER, found[1])


def cases_in(text: str) -> Iterator[str]:
    """The ids of cases that a text cites, and those between ``XY-01 to XY-03``."""
    for group, first, last in CASE.findall(text):
        yield from (f"{group}-{number:02}" for number in range(int(first), int(last or first) + 1))
    for group, number in NAMED.findall(text):
        if group.upper() in GROUPS:
            yield f"{group.upper()}-{number}"


def pages_in(text: str) -> Iterator[tuple[str, str, str]]:
    """The pages that a source names: the citation, the file, the heading (or nothing)."""
    return ((found[0], found[1], found[2] or "") for found in PAGE.finditer(text))


def unresolved(text: str) -> set[str]:
    """What a source, or a page, cites and what is not there."""
    lost = {f"wire.md {each}" for each in clauses_in(text) if each not in CLAUSES}
    return lost | (set(cases_in(text)) - CASES) | {found[0] for found in UNPUBLISHED.finditer(text)}


def unresolved_pages(text: str) -> set[str]:
    """The pages that a source names and that are not there, or lack the heading."""
    lost: set[str] = set()
    for cited, name, anchor in pages_in(text):
        path = ROOT / name if (ROOT / name).exists() else DOCS / name
        if not path.exists() or (anchor and anchor not in ANCHORS[path]):
            lost.add(cited)
    return lost


def broken_links(path: Path) -> set[str]:
    """The links of a page that lead to no file, or to no heading of it."""
    lost: set[str] = set()
    for name, anchor in LINK.findall(PAGES[path]):
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in ANCHORS[target]):
            lost.add(f"{name}#{anchor}")
    return lost


def test_each_citation_of_a_clause_or_a_case_resolves() -> None:
    lost = {path: unresolved(text) for path, text in {**CODE, **PAGES}.items()}

    assert {path: each for path, each in lost.items() if each} == {}
    assert sum(len(list(clauses_in(text))) for text in CODE.values()) > 50


def test_each_page_that_code_cites_is_there_with_its_heading() -> None:
    lost = {path: unresolved_pages(text) for path, text in CODE.items()}

    assert {path: each for path, each in lost.items() if each} == {}


def test_each_link_of_a_page_leads_to_a_file_and_its_heading() -> None:
    lost = {path: broken_links(path) for path in PAGES}

    assert {path: each for path, each in lost.items() if each} == {}


def test_a_citation_of_what_is_not_there_is_found() -> None:
    text = "(wire.md 4.1 and 4.99; SC-07 to SC-09), ZZ-07. It is wire.md\n    # 99; design: lanes."
    pages = "docs/protocol.md#errors, docs/protocol.md#none, docs/none.md"

    assert unresolved(text) == {"wire.md 4.99", "ZZ-07", "wire.md 99", "design:"}
    assert unresolved("def test_sc_99_more() -> None:") == {"SC-99"}
    assert unresolved_pages(pages) == {"docs/protocol.md#none", "docs/none.md"}


def test_clauses_stand_in_order_below_their_sections() -> None:
    keys = [tuple(map(int, each.split("."))) for each in CLAUSES]

    assert keys == sorted(set(keys))
    assert {key[:-1] for key in keys} <= {(), *keys}


def test_clauses_refer_to_each_other_by_numbers_that_there_are() -> None:
    page = re.sub(r"^(?:#+|\*\*)[ \d.]+", "", PAGES[DOCS / "wire.md"], flags=re.MULTILINE)
    referred = re.findall(r"(?<![\w.^])\d\.\d+(?:\.\d+)?(?![\w.]*\d)|(?<=\()\d(?=\))", page)

    assert len(referred) > 20
    assert set(referred) <= set(CLAUSES)


def test_each_case_has_one_row_and_the_tests_of_the_row_name_it() -> None:
    lines = re.findall(r"^\| [A-Z]{2}-\d{2} ", PAGES[DOCS / "cases.md"], re.MULTILINE)
    named = [(case, name) for case, held in ROWS for name in re.findall(r"`([^`]+)`", held)]

    assert len(lines) == len(ROWS) == len(CASES)
    assert [
        (case, name) for case, name in named if case not in set(cases_in(CODE.get(ROOT / name, "")))
    ] == []
