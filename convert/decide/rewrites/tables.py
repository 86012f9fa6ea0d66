"""The two tables that a draft may share with its target: the embeddings, and the head."""

from eagle3_interop.convert.decide.rewrites.maps import target_ids
from eagle3_interop.convert.decide.rewrites.work import SAFE, Work
from eagle3_interop.convert.write.plan import Rewrite

_EMBEDDINGS, _HEAD = "embed_tokens.weight", "lm_head.weight"


def settle_embeddings(work: Work) -> Work:
    """Keep, leave out or fetch the embedding table, by whose it is and what the destination needs."""
    draft, known = work.draft, work.loaded.own_embeddings
    same_width = draft.hidden_size == draft.target.hidden_size
    replaced = draft.vocabulary.embeddings == "target"
    if _EMBEDDINGS in work.tensors and replaced and known:
        work = work.without(_EMBEDDINGS)
        work = work.say(
            "embeddings-left-out",
            _EMBEDDINGS,
            "left out: the engine uses the target's table, before and after.",
        )
    elif _EMBEDDINGS in work.tensors and same_width and known is None:
        crosses = replaced != (work.loader.embeddings != "stored")
        if crosses and not draft.trains_embeddings:
            message = "kept. Without --target this tool cannot say whether it equals the target's."
            work = work.say("embeddings-unverified", _EMBEDDINGS, message)
        if replaced and work.loader.embeddings != "replaced":
            work = work.describe_vocabulary(embeddings="own")
    if _EMBEDDINGS not in work.tensors and not work.loader.shares_embeddings:
        work = _embeddings_from_target(work)
    return work


def _embeddings_from_target(work: Work) -> Work:
    """Write the target's table out: the library leaves an absent one uninitialised."""
    target = work.loaded.target
    if target is None or target.embedding is None:
        message = "the draft uses the target's table; speculators needs it in the file."
        raise work.refused("embeddings-need-target", _EMBEDDINGS, message)
    op = Rewrite(target.embedding, dtype=SAFE[work.draft.dtype])
    work = work.put(_EMBEDDINGS, op, "the target's table")
    return work.say("embeddings-from-target", _EMBEDDINGS, f"copied from {target.embedding.name}.")


def replace_embeddings(work: Work) -> Work:
    """Describe the table as the target's, where the destination puts that one in its place."""
    same_width = work.draft.hidden_size == work.draft.target.hidden_size
    if work.draft_class.own_embeddings or not same_width:
        return work
    return work.describe_vocabulary(embeddings="target")


def own_head(work: Work) -> Work:
    """Give the destination the head it needs: its own table, where sharing is not understood."""
    vocabulary, able = work.draft.vocabulary, work.draft_class
    if vocabulary.head == "target" and (vocabulary.mapped or not able.target_head):
        return _head_from_target(work)
    if vocabulary.head == "tied" and not able.tied_head:
        return _head_from_embeddings(work)
    return work


def _head_from_target(work: Work) -> Work:
    target = work.loaded.target
    if target is None or target.head is None:
        message = f"the draft uses the target's head; {work.destination} needs it in the file."
        raise work.refused("head-needs-target", _HEAD, message)
    rows = target_ids(work) if work.draft.vocabulary.mapped else None
    op = Rewrite(target.head, rows=rows, dtype=SAFE[work.draft.dtype])
    work = work.put(_HEAD, op, "target's rows")
    work = work.say("head-from-target", _HEAD, f"{work.draft.vocabulary.draft_size} rows.")
    return work.describe_vocabulary(head="own")


def _head_from_embeddings(work: Work) -> Work:
    """A tied head is the table that SGLang really uses: the target's, where both are equally wide."""
    target = work.loaded.target
    if work.loaded.reading.draft.vocabulary.embeddings == "own":
        source = work.loaded.stored(_EMBEDDINGS)
    elif target is not None and target.embedding is not None:
        source = target.embedding
    else:
        message = "the head is tied to the target's embedding table."
        raise work.refused("head-needs-target", _HEAD, message)
    op = Rewrite(source, dtype=SAFE[work.draft.dtype])
    work = work.put(_HEAD, op, "the embedding table")
    work = work.say("head-from-embeddings", _HEAD, f"copied from {source.name}.")
    return work.describe_vocabulary(head="own")
