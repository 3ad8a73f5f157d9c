"""Pictures that commands write next to what they print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pdctl.errors import Exit, PdctlError


def plottable(plot: Path, forms: Sequence[str]) -> None:
    """Raise PdctlError where ``plot`` can't be drawn: another ending than ``forms``, no matplotlib, or it exists."""
    import importlib.util

    if plot.suffix.lower() not in forms:
        raise PdctlError(f"{plot.name} ends in none of {', '.join(forms)}", "Name the picture so.", Exit.USAGE)
    if importlib.util.find_spec("matplotlib") is None:
        raise PdctlError(
            "--plot draws with matplotlib, which is not installed", "pip install 'pdctl[plot]'", Exit.USAGE
        )
    if plot.exists():
        raise PdctlError(f"{plot} exists", "Give another name.", Exit.USAGE)
    if not plot.parent.is_dir():
        raise PdctlError(f"{plot.parent} is not a directory", "Make it, or give another path.", Exit.USAGE)


def write(path: Path, data: bytes) -> None:
    """Write a picture that must not exist; half of one is removed. Raises PdctlError."""
    made = not path.exists()
    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError as error:
        if made:
            path.unlink(missing_ok=True)
        raise PdctlError(f"{path} can't be written: {error.strerror}", "Give another path.", Exit.PARTIAL) from None
