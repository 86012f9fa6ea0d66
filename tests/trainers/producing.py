"""What the producers share: the target, a text, weights in which everything shows, and the dump of a forward.

A producer runs in the trainer's own environment, so nothing here imports this project. It writes one folder a
variant, as the trainer's own exporter does, and beside it what the trainer's own forward computed of it.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

TARGET = Path(__file__).resolve().parents[1] / "data/trainers/target"
VOCABULARY, DRAFT_VOCABULARY = 128, 32
LENGTH = 26
"""Tokens of the text: starts 0 .. LENGTH - 3 can be fed two steps."""
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
}


def target() -> nn.Module:
    """The target, in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def text() -> Tensor:
    """[LENGTH], without the special tokens."""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(2, VOCABULARY, (LENGTH,), generator=generator)


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 2) -> None:
    """Weights so large that every norm, rotation and residual shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.copy_(1 + 0.3 * noise)
        elif parameter.dim() == 1:
            parameter.copy_(0.3 * noise)
        elif "embed" in name:
            parameter.copy_(noise)
        else:
            parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)


@torch.no_grad()
def streams(model: nn.Module, tokens: Tensor) -> dict[int, Tensor]:
    """By number of decoder layers passed, the residual stream [T, H]."""
    found = {0: model.model.embed_tokens(tokens)}

    def keep(depth: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            found[depth] = (output[0] if isinstance(output, tuple) else output)[0].clone()

        return hook

    layers = enumerate(model.model.layers, 1)
    hooks = [layer.register_forward_hook(keep(depth)) for depth, layer in layers]
    model.model(input_ids=tokens[None])
    for hook in hooks:
        hook.remove()
    return found


def fed(model: nn.Module, tokens: Tensor, taps: tuple[int, ...]) -> Tensor:
    """[1, T, taps * H], what fc is fed."""
    found = streams(model, tokens)
    return torch.cat([found[tap] for tap in taps], dim=-1)[None]


def default_taps(layers: int) -> tuple[int, int, int]:
    """What is fed where no layer ids are given: a low, a middle and a high layer's input."""
    return 2, layers // 2, layers - 3


def vocabulary(size: int = DRAFT_VOCABULARY, *, ascending: bool = True) -> Tensor:
    """Target ids of the head's rows."""
    if size == VOCABULARY:
        return torch.arange(size)
    ids = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(3))[:size]
    return ids.sort().values if ascending else ids


def set_vocabulary(draft: nn.Module, ids: Tensor) -> None:
    """Both maps of a draft, as trainers fill them."""
    draft.d2t.copy_(ids - torch.arange(len(ids)))
    if getattr(draft, "t2d", None) is not None:
        draft.t2d.zero_()
        draft.t2d[ids] = True


def next_tokens(tokens: Tensor) -> Tensor:
    """One to the left; the last one is fed by nobody."""
    return torch.cat([tokens[:, 1:], torch.zeros_like(tokens[:, :1])], dim=1)


def causal(length: int) -> Tensor:
    """[1, 1, T, T], added to the scores."""
    blocked = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
    return blocked[None, None]


def write(folder: Path, producer: str, computed: Mapping[str, Tensor]) -> None:
    """What the trainer computed, beside the folder that it exported."""
    stored = {name: x.detach().contiguous().clone() for name, x in computed.items()}
    about = {"producer": producer, "transformers": transformers.__version__}
    save_file(stored, folder.with_name(f"{folder.name}.forward.safetensors"), metadata=about)


def main(variants: Mapping[str, object], make: Callable[[str, Path], None]) -> None:
    """``producer OUT [VARIANT ...]``: some variants, else all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("variant", nargs="*", choices=[[], *variants])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for variant in arguments.variant or variants:
        folder = arguments.out / variant
        folder.mkdir(parents=True, exist_ok=True)
        make(variant, folder)
        print(f"{folder}", flush=True)
