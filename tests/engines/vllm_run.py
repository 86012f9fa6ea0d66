"""Generate with vLLM on a CPU and read its own counters (run by vLLM's Python)."""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import old_vllm
import rig
import vllm
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

DRAFTS = "vllm:spec_decode_num_drafts"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos"


ONE_KERNEL = {"attention_backend": "CPU_MLA"}
"""Every dtype; where there is AMX, vLLM itself chooses a kernel that knows bfloat16 alone. A draft inherits none."""

PLAIN_ROPE = {"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}
"""The CPU kernel of a plain rope misreads the heads of latent attention; the same in torch does not."""


def is_latent(folder: str | None) -> bool:
    """Whether a model's attention is latent (MLA)."""
    config = json.loads(Path(folder, "config.json").read_text()) if folder else {}
    return "kv_lora_rank" in config.get("text_config", config)


def for_latent_attention(request: rig.GenerationRequest, arguments: dict[str, Any]) -> None:
    """Add what a target with latent attention needs on a CPU; a draft with another kind needs its expanded form."""
    if not is_latent(request.target):
        return
    arguments |= PLAIN_ROPE
    if request.draft and not is_latent(request.draft):
        os.environ["VLLM_MLA_DISABLE"] = "1"
        return
    arguments |= ONE_KERNEL
    if request.draft:
        arguments["speculative_config"] |= ONE_KERNEL


def build_engine(request: rig.GenerationRequest) -> LLM:
    """Start the engine."""
    if request.topk > 1:
        raise ValueError("vLLM drafts chains only")
    arguments: dict[str, Any] = {
        "model": request.target,
        "dtype": request.dtype,
        "skip_tokenizer_init": True,
        "max_model_len": 512,
        "enforce_eager": True,
        "disable_log_stats": False,  # the counters are statistics
        "enable_prefix_caching": False,
    }
    if request.draft:
        arguments["speculative_config"] = {
            "method": "eagle3",
            "model": request.draft,
            "num_speculative_tokens": request.num_draft_tokens,
        }
    for_latent_attention(request, arguments)
    return LLM(**{**arguments, **request.engine_args})


def read_counters(engine: LLM) -> Counter[str | int]:
    """Return the counters so far; per-position ones under their position."""
    counters: Counter[str | int] = Counter()
    for metric in engine.get_metrics():
        if metric.name in (DRAFTS, ACCEPTED):
            counters[metric.name] += metric.value
        elif metric.name == ACCEPTED_AT:
            counters.update(dict(enumerate(metric.values)))
    return counters


def aux_layers(engine: LLM) -> list[int]:
    """Return the layers whose inputs the target hands to the draft."""

    def captured(model: Any) -> list[int]:
        return list(getattr(getattr(model, "model", model), "aux_hidden_state_layers", ()))

    return engine.apply_model(captured)[0]


def main() -> None:
    """Answer one request."""
    raw_request, output = rig.read_arguments()
    request = rig.generation_request(raw_request)
    old_vllm.complete()
    started = time.monotonic()
    engine = build_engine(request)
    loaded = time.monotonic()
    sampling = SamplingParams(
        temperature=0.0, max_tokens=request.max_new_tokens, ignore_eos=True, detokenize=False
    )
    before = read_counters(engine)
    generating = time.monotonic()
    answers = engine.generate(
        [TokensPrompt(prompt_token_ids=prompt) for prompt in request.prompts],
        sampling,
        use_tqdm=False,
    )
    generated = time.monotonic()
    counters = read_counters(engine)
    counters.subtract(before)
    positions = range(request.num_draft_tokens if request.draft else 0)
    rig.write_result(
        output,
        {
            "engine": "vllm",
            "version": vllm.__version__,
            "outputs": [list(answer.outputs[0].token_ids) for answer in answers],
            "drafts": int(counters[DRAFTS]),
            "accepted": int(counters[ACCEPTED]),
            "per_position": [int(counters[position]) for position in positions],
            "aux_layers": aux_layers(engine) if request.draft else [],
            "wall_s": generated - generating,
            "load_s": loaded - started,
        },
    )


if __name__ == "__main__":  # vLLM spawns processes that import this module again
    main()
