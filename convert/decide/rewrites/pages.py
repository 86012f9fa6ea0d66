"""The KV cache's pages, which some engines share between draft and target."""

from eagle3_interop.convert.decide.rewrites.work import Work
from eagle3_interop.convert.read.target_tables import kv_shape
from eagle3_interop.schemas.draft import Mla


def compare_kv_shape(work: Work) -> Work:
    """Say when head size or KV heads differ from the target's."""
    target = work.loaded.target
    if target is None or not work.loader.shares_pages:
        return work
    attention = work.draft.layers.attention
    theirs = kv_shape(target.text_config)
    if isinstance(attention, Mla):
        ours = (1, attention.kv_rank + attention.rope_dim)
    else:
        ours = (attention.kv_heads, attention.head_dim)
    if None in theirs or ours == theirs:
        return work
    message = f"{ours[0]} KV heads of {ours[1]}; the target has {theirs[0]} of {theirs[1]}."
    return work.say("kv-shape", "layers.attention", message)
