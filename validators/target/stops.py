"""Where a text ends: the target's end-of-sequence tokens."""

from eagle3_interop.schemas.findings import Usage


def stop_ids(*named: object) -> tuple[int, ...]:
    """End-of-sequence ids: the first that a target's configs name.

    Args:
        named: what each config says of ``eos_token_id``, the one that counts most first.

    Raises:
        Usage: none names any, or what is named is no token id.
    """
    found = next((one for one in named if one is not None), None)
    if found is None:
        raise Usage(
            "--stop-at-eos: the target names no end-of-sequence token; leave the option out."
        )
    listed = found if isinstance(found, list | tuple) else [found]
    if not listed or not all(type(one) is int and one >= 0 for one in listed):
        raise Usage(
            f"--stop-at-eos: the target's eos_token_id is {found!r}, which is no token id; "
            "correct its config, or leave the option out."
        )
    return tuple(listed)
