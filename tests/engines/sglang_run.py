"""Generate with SGLang on the stand-in kernels; sum its counters (run by SGLang's Python)."""

import json
import os
import time
from pathlib import Path
from typing import Any

import rig
import sglang

CPU_ARGUMENTS = {
    "device": "cpu",
    # torch_native alone is not wired for EAGLE; intel_amx is, and takes its kernels from
    # sgl_kernel.
    "attention_backend": "torch_native",
    "prefill_attention_backend": "intel_amx",
    "decode_attention_backend": "intel_amx",
    "skip_tokenizer_init": True,
    "skip_server_warmup": True,
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "mem_fraction_static": 0.1,
    "max_total_tokens": 8192,
    "max_running_requests": 8,
    "context_length": 512,
}


def speculative_arguments(request: rig.GenerationRequest) -> dict[str, Any]:
    """Return the arguments that make the engine draft."""
    if not request.draft:
        return {}
    return {
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": request.draft,
        "speculative_num_steps": request.steps or request.num_draft_tokens,
        "speculative_eagle_topk": request.topk,
        "speculative_num_draft_tokens": request.draft_tokens or request.num_draft_tokens + 1,
    }


def per_position(histograms: list[list[int]], depth: int) -> list[int]:
    """Turn "steps that accepted exactly i", an answer each, into "steps that accepted more"."""
    return [
        sum(count for histogram in histograms for count in histogram[position + 1 :])
        for position in range(depth)
    ]


def main() -> None:
    """Answer one request."""
    raw_request, output = rig.read_arguments()
    request = rig.generation_request(raw_request)
    report = Path(f"{output}.observed")
    os.environ["EAGLE3_ENGINE_REPORT"] = str(report)  # see stubs/observer.py
    speculative = speculative_arguments(request)
    arguments = {
        "model_path": request.target,
        "dtype": request.dtype,
        **CPU_ARGUMENTS,
        **speculative,
        **request.engine_args,
    }
    started = time.monotonic()
    engine = sglang.Engine(**arguments)
    loaded = time.monotonic()
    answers = engine.generate(
        input_ids=request.prompts,
        sampling_params={
            "temperature": 0.0,
            "max_new_tokens": request.max_new_tokens,
            "ignore_eos": True,
        },
    )
    generated = time.monotonic()
    infos = [answer["meta_info"] for answer in answers]
    histograms = [info.get("spec_correct_drafts_histogram", []) for info in infos]
    rig.write_result(
        output,
        {
            "engine": "sglang",
            "version": sglang.__version__,
            "outputs": [answer["output_ids"] for answer in answers],
            "drafts": sum(info.get("spec_verify_ct", 0) for info in infos),
            "accepted": sum(info.get("spec_num_correct_drafts", 0) for info in infos),
            "per_position": per_position(histograms, speculative.get("speculative_num_steps", 0)),
            "aux_layers": json.loads(report.read_text())["aux_layers"] if report.exists() else [],
            "wall_s": generated - loaded,
            "load_s": loaded - started,
        },
    )
    report.unlink(missing_ok=True)
    engine.shutdown()


if __name__ == "__main__":  # SGLang spawns processes that import this module again
    main()
