"""What the loaders of a destination do with a folder, whatever the network: read by the rewrites."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Loader:
    """One destination's loader, or all loaders of a folder that is made for several.

    Attributes:
        embeddings: a stored table of a draft as wide as its target is used (``stored``), is replaced by the
            target's in the stock class (``replaced``), or one does this and another that (``either``).
        shares_embeddings: takes the target's table where the file has none; else that stays uninitialised.
        strict_maps: needs d2t ascending and int64, and t2d beside it as bool.
        attention_factor: reads yarn's ``attention_factor``, and takes an ``mscale`` of zero for none.
        wants_format: refuses a file that does not say which library wrote it (transformers).
        shares_pages: serves, and may share the KV cache's pages between draft and target.
    """

    embeddings: Literal["stored", "replaced", "either"] = "stored"
    shares_embeddings: bool = True
    strict_maps: bool = False
    attention_factor: bool = True
    wants_format: bool = False
    shares_pages: bool = True
