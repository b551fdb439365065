"""Draws docs/architecture.svg from docs/architecture.txt.

Run as ``python docs/architecture_picture.py``; ``--check`` fails when the picture is not current.
"""

import sys
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

SOURCE: Final = Path(__file__).with_name("architecture.txt")
PICTURE: Final = Path(__file__).with_name("architecture.svg")

WIDTH, HEIGHT, GAP_X, GAP_Y = 250, 64, 56, 48

HEAD: Final = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
font-family="sans-serif" font-size="12" text-anchor="middle">
<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">\
<path d="M0,0 L8,4 L0,8 z"/></marker></defs>
<rect width="100%" height="100%" fill="white"/>"""


class Box(NamedTuple):
    """A room, and where it stands on the grid."""

    column: int
    row: int
    columns: int
    title: str
    does: str

    @property
    def left(self) -> int:
        return GAP_X + self.column * (WIDTH + GAP_X)

    @property
    def top(self) -> int:
        return GAP_Y // 2 + self.row * (HEIGHT + GAP_Y)

    @property
    def width(self) -> int:
        return self.columns * (WIDTH + GAP_X) - GAP_X

    @property
    def right(self) -> int:
        return self.left + self.width

    def drawn(self) -> str:
        """The box with its two lines of text."""
        x = self.left + self.width // 2
        size = f'width="{self.width}" height="{HEIGHT}"'
        return (
            f'<rect x="{self.left}" y="{self.top}" {size} rx="6" fill="#eef3fa" stroke="#345"/>\n'
            f'<text x="{x}" y="{self.top + 26}" font-weight="bold">{escape(self.title)}</text>\n'
            f'<text x="{x}" y="{self.top + 46}" font-size="11">{escape(self.does)}</text>'
        )


def arrow(one: Box, other: Box, words: str) -> str:
    """An arrow: sideways within a row, else down on the left and up on the right."""
    if one.row == other.row:
        right = other.column > one.column
        start, end = (one.right, other.left) if right else (one.left, other.right)
        y = one.top + HEIGHT // 2
        line = f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}"'
        x, y = min(start, end) + 8, y - 6
    else:
        down = other.row > one.row
        x = max(one.left, other.left) + (60 if down else 160)
        start, end = (one.top + HEIGHT, other.top) if down else (one.top, other.top + HEIGHT)
        line = f'<line x1="{x}" y1="{start}" x2="{x}" y2="{end}"'
        x, y = x + 6, (start + end) // 2 + 4
    drawn = f'{line} stroke="#345" marker-end="url(#head)"/>'
    return f'{drawn}\n<text x="{x}" y="{y}" text-anchor="start">{escape(words)}</text>'


def picture(source: str) -> str:
    """The picture of this table."""
    boxes: dict[str, Box] = {}
    parts: list[str] = []
    for row in source.splitlines():
        head, *texts = (text.strip() for text in row.split("|"))
        match head.split():
            case ["box", name, *numbers]:
                column, down, columns = map(int, numbers)
                boxes[name] = Box(column, down, columns, *texts)
                parts.append(boxes[name].drawn())
            case ["arrow", one, other]:
                parts.append(arrow(boxes[one], boxes[other], texts[0]))
    width = max(box.right for box in boxes.values()) + GAP_X
    height = max(box.top for box in boxes.values()) + HEIGHT + GAP_Y // 2
    return "\n".join([HEAD.format(width=width, height=height), *parts, "</svg>", ""])


def main() -> int:
    """Draws the picture, or checks it with ``--check``."""
    drawn = picture(SOURCE.read_text())
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(drawn)
    elif not PICTURE.exists() or PICTURE.read_text() != drawn:
        print("docs/architecture.svg is not current: run python docs/architecture_picture.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
