"""SGLang's launch command, and what SGLang makes of one.

Source of the facts: SGLang 0.5.23 ``srt/``, each rule's file beside it; ``speculative_hook.py``,
``overrides.py`` and ``model_override_base.py`` are in ``arg_groups/``.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle3_interop.convert.read.folders import local_folder
from eagle3_interop.convert.serve.launch import Command, Serving
from eagle3_interop.convert.serve.names import judge_models
from eagle3_interop.convert.serve.parse import Launch, named
from eagle3_interop.convert.serve.sglang_configs import (
    PLUGIN_VARIABLE,
    dtype_wanted,
    judge_configs,
    needs_plugin,
)
from eagle3_interop.schemas.dialects.keys import architecture
from eagle3_interop.schemas.dialects.recognition import is_latent
from eagle3_interop.schemas.engines.flags import flags_of
from eagle3_interop.schemas.findings import Finding, finding
from eagle3_interop.schemas.hub import is_hub_id

_LINK = "eagle3-draft"
_TOPK, _TOKENS = "--speculative-eagle-topk", "--speculative-num-draft-tokens"
_DRAFT_PATH = ("speculative-draft-model-path", "speculative-draft-model")

_ADAPTIVE_STEPS = (0, 1, 3, 5, 7)
"""All that ``speculative/adaptive_spec_params.py`` lists by default; it starts with the middle one."""
_PARSER = "--model-config-parser"
_LAYERED = "enable-multi-layer-eagle"
"""``speculative/multi_layer_eagle_worker_v2.py``: only ``chain_mtp_hidden_states`` feeds a draft's own on."""
_NOT_ADAPTIVE = frozenset([_LAYERED, "enable-two-batch-overlap", "enable-pdmux"])
_TREES_CHOSEN_FOR = frozenset(["LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"])

_TREES_OVER_PAGES = ("flashinfer", "fa3", "triton")
_BASE, _PREFILL, _DECODE, _DRAFT = (
    "attention-backend",
    "prefill-attention-backend",
    "decode-attention-backend",
    "speculative-draft-attention-backend",
)
_PAGED = {
    "flashmla": (_BASE, _DECODE),
    "trtllm_mla": (_BASE, _DECODE),
    "cutedsl_mla": (_BASE, _DECODE, _PREFILL),
    "hpc_ops": (_BASE, _DECODE, _PREFILL),
    "trtllm_mha": (_BASE, _DECODE, _PREFILL, _DRAFT),
}
"""Backends that make pages of 16 positions at least, and the flags by which they do."""
_LATENT_ALONE = frozenset(["cutedsl_mla", "flashmla", "trtllm_mla"])
_GROUPS_ALONE = frozenset(["hpc_ops", "trtllm_mha"])
"""Backends that compute one kind of attention: ``layers/attention/attention_registry.py``."""
_BOTH_KINDS = "triton"
"""One that computes both, on NVIDIA and AMD, over pages too."""
_OLD_BACKEND = "tokenspeed_mla"


def sglang_command(serving: Serving) -> Command:
    """The command; see `serve.command`."""
    steps, topk = serving.num_draft_tokens, serving.topk
    # A chain of K needs K steps and K + 1 draft tokens: SGLang counts the root among them.
    tokens = steps + 1 if topk == 1 else 1 + topk + (steps - 1) * topk
    (source, revision), (model, its_revision) = named(serving.checkpoint), named(serving.target)
    before, draft = _plain_name(source, revision)
    flags = {
        "--revision": its_revision or None,
        _PARSER: "hf" if _misread(model) else None,
        "--speculative-algorithm": "EAGLE3",
        "--speculative-draft-model-path": draft,
        "--speculative-draft-model-revision": None if before else revision or None,
        "--speculative-num-steps": str(steps),
        _TOPK: str(topk),
        _TOKENS: str(serving.draft_tokens or tokens),
        f"--{_DRAFT}": _BOTH_KINDS if _kinds_differ(serving) else None,
        "--dtype": dtype_wanted(serving.config, serving.target_config),
    }
    # In older releases there was no flag for it.
    known = flags_of("sglang", serving.version).values if serving.version else flags
    if _PARSER not in known:
        flags[_PARSER] = None
    name, _, value = PLUGIN_VARIABLE.partition("=")
    return Command(
        "sglang",
        model,
        tuple((flag, value) for flag, value in flags.items() if value is not None),
        ((name, value),) if needs_plugin(serving.config) else (),
        tuple(before),
    )


def _kinds_differ(serving: Serving) -> bool:
    """Whether draft and target attend in different ways, so that the target's default may not do for the draft."""
    target = serving.target_config
    return target is not None and _is_latent(serving.config) != _has_latent(target)


def _is_latent(config: Mapping[str, Any]) -> bool:
    return is_latent(architecture(config), config.get("kv_lora_rank"))


def _has_latent(target: Mapping[str, Any]) -> bool:
    return target.get("kv_lora_rank") is not None


def judge_sglang(launch: Launch) -> Iterator[Finding]:
    """What would go wrong with this command."""
    yield from _judge_spelling(launch)
    yield from _judge_draft(launch)
    yield from _judge_names(launch)
    yield from _judge_counts(launch)
    topk = _topk(launch)
    yield from _judge_sampling(launch, topk)
    yield from _judge_attention(launch, topk)
    yield from _judge_kind(launch)
    yield from judge_configs(launch)
    revision = launch.last("speculative-draft-model-revision")
    served = launch.last("model-path", "model") or next(iter(launch.parsed[1]), None)
    yield from judge_models(launch, _draft_path(launch), revision, served, launch.last("revision"))


def _judge_spelling(launch: Launch) -> Iterator[Finding]:
    """``server_args.py`` ``prepare_server_args``: a plain parser."""
    names = (word.partition("=")[0] for word in launch.own if word.startswith("--"))
    if wrong := [name for name in names if "_" in name]:
        message = f"{', '.join(wrong)}: SGLang knows no such flag, and does not start."
        yield finding("serve-underscores", wrong[0], message)


def _judge_draft(launch: Launch) -> Iterator[Finding]:
    names = ("speculative-algorithm", "speculative-algo")
    algorithm = launch.last(*names)
    where = "--speculative-algorithm"
    if launch.absent(*names):
        yield finding("serve-algorithm", where, "absent: nothing is drafted.")
    elif algorithm is not None and algorithm.upper() != "EAGLE3":
        message = (
            f"{algorithm}: the target hands over its last hidden state alone, and fc is skipped."
        )
        yield finding("serve-algorithm", where, message)
    if _LAYERED in launch.flags:
        message = "every position gets a model of its own that sees the target's hidden states, never the draft's."
        yield finding("serve-multi-layer", f"--{_LAYERED}", message)
    if launch.absent(*_DRAFT_PATH):
        draft = shlex.quote(named(launch.checkpoint)[0])
        message = f"absent: give --speculative-draft-model-path {draft}."
        yield finding("serve-no-draft", "--speculative-draft-model-path", message)


def _draft_path(launch: Launch) -> str | None:
    return launch.last(*_DRAFT_PATH)


# Names: `utils/hf_transformers/mistral_utils.py` `is_mistral_model` goes by the whole path.


def _taken_for_eagle(path: str) -> bool:
    return all(word in path.lower() for word in ("eagle", "mistral"))


def _taken_for_native(path: str) -> bool:
    words = ("mistral-large-3", "mistral-small-4", "leanstral")
    return _taken_for_eagle(path) or any(word in path.lower() for word in words)


def _misread(path: str) -> bool:
    """Whether SGLang asks for a ``params.json`` that is not there, as far as can be seen from here."""
    folder = local_folder(path)
    if folder is not None:
        return _taken_for_native(path) and not _holds(folder, "params.json")
    return _taken_for_eagle(path)


def _holds(folder: Path, name: str) -> bool:
    try:
        return (folder / name).exists()
    except OSError:  # not ours to look into
        return False


def _plain_name(checkpoint: str, revision: str | None) -> tuple[list[str], str]:
    """What to run first, and a name of the draft that SGLang does not take for Mistral's own format."""
    if not _taken_for_native(checkpoint):
        return [], checkpoint
    remote = is_hub_id(checkpoint) and local_folder(checkpoint) is None
    at = ["--revision", revision] if revision else []
    download = ["hf", "download", checkpoint, *at, "--local-dir", _LINK]
    return download if remote else ["ln", "-sfn", checkpoint, _LINK], _LINK


def _judge_names(launch: Launch) -> Iterator[Finding]:
    """The draft's config is also read by `_resolve_speculative_algorithm_alias`, which hands on no parser."""
    draft, target = _draft_path(launch) or "", launch.last("model-path", "model") or ""
    if _taken_for_native(draft):
        message = (
            f"by the name {draft!r} SGLang looks for Mistral's params.json, and --model-config-parser "
            "does not reach the draft."
        )
        yield finding("serve-mistral-name", "--speculative-draft-model-path", message)
    told = launch.flags.get("model-config-parser", "auto") != "auto" or launch.takes_a_file
    if told or not _misread(target):
        return
    code = "serve-mistral-name" if local_folder(target) else "serve-mistral-target"
    message = f"by the name {target!r} SGLang reads params.json, not config.json."
    fix = "--model-config-parser hf"
    if _PARSER not in launch.known.values:
        fix = "Give the target another name, by a link: this release has no --model-config-parser."
    yield finding(code, "--model-path", message, fix=fix)


# Counts: `speculative_hook.py` `_handle_eagle_family` and `_init_adaptive_speculative_params`.


def _adapts(launch: Launch) -> bool:
    """Whether SGLang adapts the steps; it drops the wish without a word beside these flags."""
    return (
        "speculative-adaptive" in launch.flags
        and launch.number("speculative-eagle-topk") in (None, 1)
        and not _NOT_ADAPTIVE & launch.flags.keys()
        and not _attends_in_groups(launch)
    )


def _attends_in_groups(launch: Launch) -> bool:
    """``parallel_hook.py`` ``_handle_deprecated_dp_attention``."""
    groups = launch.number("attn-dp-size", "attention-data-parallel-size") or 1
    if groups == 1 and "enable-dp-attention" in launch.flags:
        groups = launch.number("dp-size", "data-parallel-size") or 1
    return groups > 1


def _topk(launch: Launch) -> int | None:
    """The top-k that the server runs with; None, where it cannot be known, or there is none."""
    given = launch.number("speculative-eagle-topk")
    if given is not None:
        return given
    if launch.takes_a_file:
        return None
    if _adapts(launch):
        return 1
    name = architecture(launch.target or {})
    if launch.number("speculative-num-steps") is not None or not name:
        return None
    return 4 if name in _TREES_CHOSEN_FOR else 1


def _judge_counts(launch: Launch) -> Iterator[Finding]:
    steps = launch.number("speculative-num-steps")
    topk = launch.number("speculative-eagle-topk")
    tokens = launch.number("speculative-num-draft-tokens")
    where = "--speculative-num-steps"
    least = 0 if _adapts(launch) else 1
    if wrong := list(_too_few((where, steps, least), (_TOPK, topk, 1), (_TOKENS, tokens, 1))):
        yield from wrong
        return
    if launch.takes_a_file and None in (steps, topk, tokens):
        return
    if _adapts(launch):
        yield from _judge_adaptive(launch, steps, tokens)
    elif steps is None:
        if tokens is not None or topk is not None:
            message = "absent beside draft tokens or top-k: SGLang fails an assertion."
            yield finding("serve-counts", where, message)
        else:
            message = "none of the three counts is given: SGLang chooses by the target's class."
            yield finding("serve-counts-chosen", where, message)
    elif topk is None:
        message = "absent beside the steps: SGLang compares nothing with 1, and does not start."
        yield finding("serve-counts", _TOPK, message)
    elif topk == 1:
        yield from _judge_chain(steps, tokens)
    else:
        yield from _judge_tree(steps, topk, tokens)


def _too_few(*counts: tuple[str, int | None, int]) -> Iterator[Finding]:
    """SGLang 0.5.23 itself looks at none of them, and fails, or drafts nothing, later."""
    for flag, count, least in counts:
        if count is not None and count < least:
            yield finding("serve-counts", flag, f"{count}: at least {least} makes a draft.")


def _judge_adaptive(launch: Launch, steps: int | None, tokens: int | None) -> Iterator[Finding]:
    if "speculative-adaptive-config" in launch.flags:
        return
    if steps is None:
        steps = _ADAPTIVE_STEPS[len(_ADAPTIVE_STEPS) // 2]
    if steps not in _ADAPTIVE_STEPS:
        message = f"{steps}: SGLang's --speculative-adaptive takes one of {', '.join(map(str, _ADAPTIVE_STEPS))}."
        yield finding("serve-counts", "--speculative-num-steps", message)
    else:
        yield from _judge_chain(steps, tokens)


def _judge_chain(steps: int, tokens: int | None) -> Iterator[Finding]:
    if tokens is not None and tokens != steps + 1:
        message = (
            f"with top-k 1, {steps} steps make {steps + 1} draft tokens, the root included, whatever "
            f"--speculative-num-draft-tokens {tokens} asks: {steps} proposed tokens a step."
        )
        yield finding("serve-steps-win", "--speculative-num-steps", message)


def _judge_tree(steps: int, topk: int, tokens: int | None) -> Iterator[Finding]:
    """`speculative/eagle_utils.py` `organize_draft_results` takes tokens - 1 of the tree's nodes."""
    where = _TOKENS
    nodes = 1 + topk + (steps - 1) * topk * topk
    if tokens is None:
        yield finding("serve-counts", where, "absent: a tree has no number of its own for SGLang.")
    elif tokens == 1:
        yield finding("serve-counts", where, "1 is the root alone: nothing is drafted.")
    elif tokens > nodes:
        message = f"{tokens} draft tokens, and a tree of {steps} steps by {topk} has {nodes} nodes."
        yield finding("serve-counts", where, message)


def _judge_sampling(launch: Launch, topk: int | None) -> Iterator[Finding]:
    """`speculative_hook.py`, where block verification sets the other; `speculative/eagle_worker_v2.py`."""
    names = ("speculative-use-rejection-sampling", "speculative-use-block-verification")
    given = next((name for name in names if name in launch.flags), None)
    if given is None:
        return
    if topk not in (None, 1):
        yield finding("serve-tree", f"--{given}", f"it drafts chains only, and top-k is {topk}.")
    own, whole = (launch.config.get(key) for key in ("draft_vocab_size", "vocab_size"))
    if own is not None and whole is not None and own != whole:
        message = f"the draft proposes {own} of {whole} tokens: SGLang does not start."
        yield finding("serve-sampling", f"--{given}", message)


def _backends(launch: Launch) -> dict[str, str]:
    """The backend flags; ``serving_hook.py`` ``_handle_deprecated_args`` renames an old value."""
    given = {
        flag: launch.flags[flag]
        for flag in (_BASE, _PREFILL, _DECODE, _DRAFT)
        if flag in launch.flags
    }
    return {
        flag: ("trtllm_mla" if flag == _PREFILL else "cutedsl_mla")
        if value == _OLD_BACKEND
        else value
        for flag, value in given.items()
    }


def _judge_attention(launch: Launch, topk: int | None) -> Iterator[Finding]:
    """`speculative_hook.py`; pages and default by ``overrides.py`` and ``model_override_base.py``."""
    if topk in (None, 1):
        return
    flags = _backends(launch)
    base = flags.get(_BASE)
    prefill, decode = flags.get(_PREFILL, base), flags.get(_DECODE, base)
    if "trtllm_mha" in (prefill, decode):
        message = f"trtllm_mha drafts chains only, and top-k is {topk}."
        yield finding("serve-tree", f"--{_BASE}", message)
        return
    forced = (name for name, by in _PAGED.items() if any(flags.get(flag) == name for flag in by))
    paged = next(forced, None)
    if paged is None and (launch.number("page-size") or 1) <= 1:
        return
    if _PREFILL in flags and flags[_PREFILL] == flags.get(_DECODE):
        base = flags[_PREFILL]
    whose = f"{paged} makes pages" if paged else f"pages of {launch.number('page-size')}"
    if base is None and not launch.takes_a_file:
        message = (
            f"{whose}; the default backend on NVIDIA can do trees over them, AMD's aiter cannot."
        )
        yield finding("serve-pages-chosen", "--page-size", message)
    elif base is not None and base not in _TREES_OVER_PAGES:
        message = f"{whose}, and trees over pages need flashinfer, fa3 or triton, not {base}."
        yield finding("serve-pages", f"--{_BASE}" if paged else "--page-size", message)


def _judge_kind(launch: Launch) -> Iterator[Finding]:
    """A draft without a backend of its own takes the target's, also one that cannot compute its attention.

    ``model_executor/model_runner.py`` ``resolve_draft_attention_backend``; for DeepSeek's family
    ``model_overrides/deepseek_v2.py`` chooses ``trtllm_mla`` on Blackwell, else ``model_override_base.py``.
    """
    latent, flags = _is_latent(launch.config), _backends(launch)
    other = _GROUPS_ALONE if latent else _LATENT_ALONE
    base = flags.get(_BASE)
    given = (
        [flags[_DRAFT]]
        if _DRAFT in flags
        else [flags.get(_PREFILL, base), flags.get(_DECODE, base)]
    )
    where, fix = f"--{_DRAFT}", f"--{_DRAFT} {_BOTH_KINDS}"
    kind = "latent attention (MLA)" if latent else "attention with heads in groups"
    if wrong := next((name for name in given if name in other), None):
        message = f"{wrong} does not compute the draft's {kind}, and SGLang does not start."
        yield finding("serve-backend", where, message, fix=fix)
        return
    if launch.target is None or launch.takes_a_file or given[0] is not None:
        return
    if latent != _has_latent(launch.target):
        message = f"absent: the draft takes the backend that SGLang chooses for the target, which on some GPUs does not compute its {kind}."
        yield finding("serve-backend-chosen", where, message, fix=fix)
