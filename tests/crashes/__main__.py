"""``python -m tests.crashes``: makes ``docs/crash-matrix.md`` again."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.crashes.matrix import ENGINES, ROWS, cells, page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "crash-matrix.md"


async def _all(folder: Path) -> str:
    tables = {}
    for engine in ENGINES:
        tables[engine] = {}
        for number, row in enumerate(ROWS):
            sys.stderr.write(f"{engine}: {row.step}, {row.scenario}\n")
            tables[engine][row] = await cells(engine, row, folder / engine / str(number))
    return page(tables)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        PAGE.write_text(asyncio.run(_all(Path(name))))
