"""`sglang_release` for drafts with latent attention (MLA), whose layers ask for a forward context in newer releases."""

import sys

import sglang_release


class Backend:
    """None of SGLang's own."""

    # None: as the server's arguments say.
    prefill_attention_backend_str = decode_attention_backend_str = None


def give_context() -> None:
    """One for all calls; older releases have none."""
    try:
        from sglang.srt.model_executor.forward_context import ForwardContext, set_forward_context
    except ImportError:
        return
    set_forward_context(ForwardContext(attn_backend=Backend()))


if __name__ == "__main__":
    give_context()
    sys.exit(sglang_release.main())
