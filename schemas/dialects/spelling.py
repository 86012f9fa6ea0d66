"""Canonical tensor names, and how each framework spells them."""

import re
from dataclasses import dataclass
from typing import Literal

DROPPED = re.compile(r"(rotary_emb\.inv_freq|^verifier_norm\.weight|^verifier_lm_head\.weight)$")
"""Stored by some trainers, computed or taken from the target by every reader that loads the folder."""

_LEGACY_NORMS = {
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}
_LATER_LAYER_NORM = re.compile(r"layers\.([1-9]\d*)\.(hidden_norm|input_layernorm)\.weight")

LaterNorm = Literal["hidden_norm", "input_layernorm"]


@dataclass(frozen=True)
class Spelling:
    """How a framework spells canonical names.

    Attributes:
        roots: prefixes that its loader accepts before every name but the head's.
        layer0: prefixes that its loader accepts for layer 0; the first is the one we write.
        later_norm: what it calls the norm before attention in layers >= 1.
        legacy_norms: its loader knows ``aux_norm_low/mid/high``.
        head_roots: prefixes that its loader accepts before the head's name.
    """

    roots: tuple[str, ...]
    layer0: tuple[str, ...]
    later_norm: LaterNorm
    legacy_norms: bool = False
    head_roots: tuple[str, ...] = ("",)

    def write(self, canonical: str) -> str:
        """The name to write for a canonical one."""
        if match := _LATER_LAYER_NORM.fullmatch(canonical):
            return f"layers.{match[1]}.{self.later_norm}.weight"
        if canonical.startswith("layers.0."):
            return self.layer0[0] + canonical.removeprefix("layers.0.")
        return canonical

    def accepts(self, stored: str, canonical: str) -> bool:
        """Whether its loader, given ``stored``, loads it as ``canonical``."""
        names = {self.write(canonical)}
        if canonical.startswith("layers.0."):
            names = {prefix + canonical.removeprefix("layers.0.") for prefix in self.layer0}
        if self.legacy_norms and canonical.startswith("fc_norm."):
            names |= {
                canonical.replace(new, old)
                for old, new in _LEGACY_NORMS.items()
                if new in canonical
            }
        roots = self.head_roots if canonical == "lm_head.weight" else self.roots
        return stored in {root + name for root in roots for name in names}


@dataclass(frozen=True)
class Name:
    """A stored name, understood.

    Attributes:
        canonical: the canonical name, or None for the norm of a later layer under the other
            spelling, which its framework does not use.
        stored: the name in the file.
    """

    canonical: str | None
    stored: str


def understand(stored: str, later_norm: LaterNorm) -> Name:
    """Read any known spelling of a name.

    Args:
        stored: the name in the file.
        later_norm: what the file's framework calls the norm before attention in layers >= 1.
    """
    name = stored.removeprefix("model.")
    for old, new in _LEGACY_NORMS.items():
        if name.startswith(old + "."):
            name = new + name.removeprefix(old)
    name = re.sub(r"^midlayer\.(\d+\.)", r"layers.\1", name)
    name = re.sub(r"^midlayer\.", "layers.0.", name)
    if match := _LATER_LAYER_NORM.fullmatch(name):
        if match[2] != later_norm:
            return Name(None, stored)
        name = f"layers.{match[1]}.input_layernorm.weight"
    return Name(name, stored)
