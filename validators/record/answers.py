"""What an engine answered, as a text that is written: rows counted against tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eagle3_interop.schemas.findings import Unavailable
from eagle3_interop.validators.engines.answers import TITLES
from eagle3_interop.validators.record.record import Written, sound
from eagle3_interop.validators.record.store import Plan
from eagle3_interop.validators.target.running import DTYPES
from eagle3_interop.validators.target.tables import TargetTables

FOREIGN = 0.2
"""Share of a text's tokens that may be another choice than the recorded last state's: rounding in half precision."""


def tensors_of(answer: Mapping[str, Any]) -> dict[str, Tensor]:
    """An answer over HTTP as the script writes it.

    Raises:
        Unavailable: it holds no hidden states.
    """
    info = answer.get("meta_info") or {}
    rows, ids = info.get("hidden_states"), answer.get("output_ids")
    if not rows or not isinstance(ids, list):
        raise Unavailable("SGLang answers without hidden_states or output_ids")
    prompt = torch.tensor(rows[0], dtype=torch.float32)
    later = torch.tensor(rows[1:], dtype=torch.float32).view(-1, prompt.shape[-1])
    found = {"states": torch.cat([prompt, later]), "output_ids": torch.tensor(ids)}
    if top := info.get("output_top_logprobs"):
        found["top_logprobs"] = torch.tensor([[one[0] for one in place] for place in top])
        found["top_ids"] = torch.tensor([[one[1] for one in place] for place in top])
    return found


def tokens_of(plan: Plan, number: int, output_ids: Sequence[int]) -> list[int]:
    """Prompt and continuation, as far as there are hidden states.

    Raises:
        Unavailable: the engine wrote another number of tokens.
    """
    new, title = plan.new_tokens + plan.lookahead, TITLES[plan.by.engine]
    if len(output_ids) != new + 1:
        raise Unavailable(f"text {number}: {title} wrote {len(output_ids)} tokens of {new + 1}")
    return [*plan.prompts[number], *output_ids[:new]]


def composed(plan: Plan, number: int, found: Mapping[str, Tensor], held: TargetTables) -> Written:
    """A text as it is written: its taps, the last state or the likeliest tokens; rows counted against tokens.

    Raises:
        Unavailable: a token has no hidden state, or they are of another width.
    """
    title = TITLES[plan.by.engine]
    tokens = tokens_of(plan, number, found["output_ids"].tolist())
    states, width = found["states"], plan.target.hidden_size
    wanted = (len(tokens), len(plan.taps) * width)
    if tuple(states.shape) != wanted:
        raise Unavailable(
            f"text {number}: {title} handed out hidden states {list(states.shape)}, and {list(wanted)} belong to "
            "these tokens and layers"
        )
    kept = states.view(len(tokens), len(plan.taps), width)
    more = {}
    if plan.last != "absent":
        last = found["last"]
        if tuple(last.shape) != (len(tokens), width):
            raise Unavailable(
                f"text {number}: {title} handed out last states {list(last.shape)} for {len(tokens)} tokens"
            )
        if not number:
            check_own(plan, tokens, last, held)
        kept = torch.cat([kept, last[:, None]], dim=1)
    elif plan.basis == "top-logprobs":
        if "top_ids" not in found:
            raise Unavailable(
                f"text {number}: {title} handed out no log-probabilities, which were asked"
            )
        more = top_rows(len(tokens), len(plan.prompts[number]), found)
    kept = kept.to(DTYPES[plan.dtype])
    sound(number, [kept])
    return tokens, {"hidden_states": kept, **more}


def top_rows(count: int, prompt: int, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The likeliest tokens after each position; none after those of the prompt but its last."""
    size = found["top_ids"].shape[1]
    ids = torch.full((count, size), -1, dtype=torch.int32)
    scores = torch.full((count, size), -torch.inf)
    wanted = count - prompt + 1
    ids[prompt - 1 :] = found["top_ids"][:wanted].int()
    scores[prompt - 1 :] = found["top_logprobs"][:wanted].float()
    return {"top_ids": ids, "top_logprobs": scores}


def check_own(plan: Plan, tokens: Sequence[int], last: Tensor, held: TargetTables) -> None:
    """Refuse a first text that its last hidden state does not explain: another model was served.

    Raises:
        Unavailable: it does not.
    """
    prompt = len(plan.prompts[0])
    last = last[prompt - 1 : -1].to(held.device, held.dtype)
    with torch.no_grad():
        final = held.final_norm[0](last) if plan.last == "pre-norm" else last
    wrong = float((held.choices(final).cpu() != torch.tensor(tokens[prompt:])).float().mean())
    if wrong > FOREIGN:
        title = TITLES[plan.by.engine]
        raise Unavailable(
            f"text 0: {100 * wrong:.0f} % of its tokens are not what the head of {held.checkpoint.path} makes of "
            f"{title}'s last hidden state: it serves another model, or the model otherwise"
        )
