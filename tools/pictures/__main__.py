"""Write all drawings: `python -m tools.pictures`."""

from __future__ import annotations

from pathlib import Path

from tools.pictures.catalogue import PICTURES

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    for picture in PICTURES:
        (ROOT / picture.PLACE).write_text(picture.draw())
        print(picture.PLACE)
