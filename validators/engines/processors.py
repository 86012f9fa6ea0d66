"""What an engine must be told where it computes on a CPU, and on a GPU must not be."""

from dataclasses import dataclass

from eagle3_interop.convert.serve.command import Engine
from eagle3_interop.validators.engines.answers import Work


@dataclass(frozen=True)
class Processor:
    """Of one kind of machine.

    Attributes:
        arguments: flags of the engine's command line.
        variables: environment variables, which the user's own go before.
    """

    arguments: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


PLAIN_ROPE = "--compilation-config.custom_ops+=-rotary_embedding"
"""vLLM 0.32's CPU kernel of a plain rope takes the heads of latent attention for something else; torch does not."""

ONE_KERNEL = (
    "--attention-backend=CPU_MLA",
    "--speculative-config.attention_backend=CPU_MLA",
)
"""Its kernel for every dtype; a machine with AMX chooses another one, which knows bfloat16 alone."""

EXPANDED = (("VLLM_MLA_DISABLE", "1"),)
"""Latents are expanded, so that target and draft can share one size of cache blocks, which their kernels have not."""


def on_a_cpu(engine: Engine, work: Work) -> Processor:
    """What this engine must be told for this work, where it finds itself on a CPU."""
    if engine != "vllm" or "target" not in work.latent:
        return Processor()
    if "draft" in work.latent:
        return Processor((*ONE_KERNEL, PLAIN_ROPE))
    return Processor((PLAIN_ROPE,), EXPANDED)
