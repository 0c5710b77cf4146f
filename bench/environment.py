"""The environment of the contenders, never ours: ``.venv-bench``, made when it is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ("python_of_contenders", "root")

root = Path(__file__).resolve().parent.parent
_LOCK = root / "bench" / "requirements.lock"
_FOLDER = root / ".venv-bench"
_STAMP = _FOLDER / ".locked"


def python_of_contenders() -> Path:
    """Return the Python that has the contenders, once they are installed as locked.

    Raises:
        subprocess.CalledProcessError: They cannot be installed.
    """
    python = _FOLDER / "bin" / "python"
    if not _STAMP.exists() or _STAMP.read_bytes() != _LOCK.read_bytes():
        print(f"Installing the contenders into {_FOLDER.name}; this happens once.", file=sys.stderr)
        shutil.rmtree(_FOLDER, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(_FOLDER)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [str(python), *install, "--require-hashes", "--requirement", str(_LOCK)], check=True
        )
        shutil.copyfile(_LOCK, _STAMP)
    return python
