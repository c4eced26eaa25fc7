"""Which device a price list means by a GPU's name, where the name is enough to tell."""

from __future__ import annotations

import re

# A100 and H100 come in forms that differ in bandwidth and power, and lists often name none: those stay untold unless
# the machine type or the GPU's longer name says so. RTX PRO 6000 likewise, by edition.
_EXACT = {
    "t4": "t4",
    "l4": "l4",
    "a10g": "a10g",
    "l40s": "l40s",
    "h100nvl": "h100-nvl",
    "h200": "h200",
    "b200": "b200",
    "b300": "b300",
    "a6000": "rtx-a6000",
    "rtxa6000": "rtx-a6000",
    "gh200": "gh200-96gb",
}
_OTHER_MEMORY_GB = {"gh200": 144.0}


def gpu_id_of(name: str, *, memory_gb: float | None = None, description: str = "") -> str | None:
    """Return the catalogue's ``gpu_id`` for a GPU as a price list names it, or None where that does not tell.

    Args:
        name: Such as ``A100-80GB``, ``H100``, ``RTX PRO 6000``.
        memory_gb: Nominal memory of one GPU, where the list gives it.
        description: Whatever else the list says of the machine: its type, the GPU's long name.
    """
    plain = re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("nvidia"))
    text = f"{name} {description}".lower()
    if plain in _EXACT:
        other = _OTHER_MEMORY_GB.get(plain)
        if other is not None and memory_gb is not None and abs(memory_gb - other) < 0.1 * other:
            return None
        return _EXACT[plain]
    form = "sxm" if "sxm" in text else "pcie" if "pcie" in text else None
    if re.fullmatch(r"a100(40gb|80gb)?(sxm\d?|pcie)?(40gb|80gb)?", plain):
        size = "80gb" if "80gb" in plain or _near(memory_gb, 80) else "40gb" if _is_40(plain, memory_gb) else None
        return f"a100-{form}-{size}" if form and size else None
    if re.fullmatch(r"h100(80gb|mega80gb)?(sxm\d?|pcie)?(80gb)?", plain):
        return f"h100-{form}" if form else None
    if "rtxpro6000" in plain:
        edition = "server" if "server" in text else "workstation" if "workstation" in text else None
        return f"rtx-pro-6000-{edition}" if edition else None
    return None


def _is_40(plain: str, memory_gb: float | None) -> bool:
    return "40gb" in plain or _near(memory_gb, 40)


def _near(memory_gb: float | None, nominal_gb: float) -> bool:
    return memory_gb is not None and abs(memory_gb - nominal_gb) <= 0.08 * nominal_gb
