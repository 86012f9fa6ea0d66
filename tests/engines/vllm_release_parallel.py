"""`vllm_release` for drafts that propose all tokens in one pass (P-EAGLE).

The release's proposer looks for the mask token and puts ``mask_hidden`` through fc; each later position takes both. A
release that knows no parallel drafting is not asked for it, and drafts token by token.
"""

import sys
from dataclasses import fields
from typing import Any

import draft_steps
import torch
import vllm_release
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import EngineArgs

KNOWN = "parallel_drafting" in {one.name for one in fields(SpeculativeConfig)}
one_by_one = draft_steps.run_steps


class Loader(vllm_release.Loader):
    """The one of the case that runs, with what its runner would have told it."""

    now: "Loader"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        Loader.now = self
        self.parallel_drafting = self.pass_hidden_states_to_model = KNOWN
        self.eagle3_use_aux_hidden_state = True
        self.hidden_size = self.draft_model_config.get_hidden_size()
        self.dtype = torch.float32
        if KNOWN:
            self._init_parallel_drafting_params()


def arguments(**given: Any) -> EngineArgs:
    """Those of the release, that it shall draft in one pass."""
    if KNOWN:
        given["speculative_config"] |= {"parallel_drafting": True}
    return EngineArgs(**given)


def run_steps(
    step: draft_steps.Step, token_ids: torch.Tensor, features: torch.Tensor, steps: int
) -> dict[str, torch.Tensor]:
    """One pass: every later position takes the mask token beside the hidden state that stands for it."""
    if not KNOWN:
        return one_by_one(step, token_ids, features, steps)

    def masked(
        tokens: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> draft_steps.StepOutput:
        if positions[0] > 0:
            tokens = torch.full_like(tokens, Loader.now.parallel_drafting_token_id)
            hidden = Loader.now.parallel_drafting_hidden_state_tensor.expand(len(tokens), -1)
        return step(tokens, positions, hidden)

    return one_by_one(masked, token_ids, features, steps)


if __name__ == "__main__":
    vllm_release.Loader = Loader
    vllm_release.EngineArgs = arguments
    draft_steps.run_steps = run_steps
    sys.exit(vllm_release.main())
