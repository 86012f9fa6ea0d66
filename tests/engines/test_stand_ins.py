"""The stand-in kernels against definitions written another way; needs torch, no engine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

STUBS = Path(__file__).parent / "stubs"
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make ``sgl_kernel`` importable for one test."""
    monkeypatch.syspath_prepend(str(STUBS))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "sgl_kernel"]:
        del sys.modules[name]


def sequence(length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values of one sequence."""
    generator = torch.Generator().manual_seed(length)
    shapes = ((length, HEADS, HEAD_DIM), (length, KV_HEADS, HEAD_DIM), (length, KV_HEADS, HEAD_DIM))
    queries, keys, values = (torch.randn(shape, generator=generator) for shape in shapes)
    return queries, keys, values


def expected(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    """Attend with torch's own kernel."""
    result = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1),
        keys.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1),
        values.repeat_interleave(HEADS // KV_HEADS, 1).transpose(0, 1),
        attn_mask=visible,
    )
    return result.transpose(0, 1)


def extend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    new: int,
    window: int,
    tree_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Call the stand-in for the last ``new`` tokens of a sequence scattered in its buffers."""
    from sgl_kernel.attention import extend_attention

    length = len(keys)
    slots = torch.randperm(length, generator=torch.Generator().manual_seed(0))
    k_buffer, v_buffer = torch.empty_like(keys), torch.empty_like(values)
    k_buffer[slots], v_buffer[slots] = keys, values
    out = torch.full((new, HEADS, HEAD_DIM), torch.nan)
    extend_attention(
        queries[-new:],
        None,
        None,
        out,
        k_buffer,
        v_buffer,
        1.0,
        1.0,
        slots.int()[None],
        torch.tensor([0]),
        torch.tensor([length]),
        torch.tensor([new]),
        torch.tensor([0]),
        new,
        HEAD_DIM**-0.5,
        0.0,
        False,
        window,
        tree_mask=tree_mask,
    )
    return out


@pytest.mark.parametrize("window", [0, 1, 4, 100])
def test_extend_sees_the_window_and_nothing_later(window: int) -> None:
    length, new = 11, 5
    queries, keys, values = sequence(length)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    visible = (distance >= 0) & (distance < (window or length))
    wanted = expected(queries, keys, values, visible)[-new:]
    torch.testing.assert_close(extend(queries, keys, values, new, window), wanted)


def first_pass(cached: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What latent attention asks: expanded keys and narrower values in the call, latents in the buffers."""
    from sgl_kernel.attention import extend_attention

    length, latent = 7, torch.full((8, 1, 5), torch.nan)
    queries, keys, values = sequence(length)
    keys, values = keys.repeat(1, 2, 1), values.repeat(1, 2, 1)[..., :6]
    out = torch.full((length, HEADS, 6), torch.nan)
    extend_attention(
        queries,
        keys,
        values,
        out,
        latent,
        latent[..., :4],
        1.0,
        1.0,
        torch.arange(8).int()[None],
        torch.tensor([0]),
        torch.tensor([length + cached]),
        torch.tensor([length]),
        torch.tensor([0]),
        length,
        HEAD_DIM**-0.5,
        0.0,
        False,
        0,
    )
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1) for x in (queries, keys, values)), is_causal=True
    )
    return out, wanted.transpose(0, 1)


def test_the_first_pass_of_latent_attention_takes_the_keys_of_the_call() -> None:
    torch.testing.assert_close(*first_pass(cached=0))


def test_the_first_pass_of_latent_attention_behind_a_cached_prefix_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="prefix"):
        first_pass(cached=1)


@pytest.mark.parametrize("window", [0, 1, 4, 100])
def test_decode_is_extend_by_one_token(window: int) -> None:
    from sgl_kernel.attention import decode_attention

    length = 9
    queries, keys, values = sequence(length)
    k_buffer, v_buffer = keys.clone(), values.clone()
    k_buffer[-1], v_buffer[-1] = torch.nan, torch.nan  # decode itself stores the newest token
    out = torch.empty(1, HEADS, HEAD_DIM)
    decode_attention(
        queries[-1:],
        k_buffer,
        v_buffer,
        1.0,
        1.0,
        out,
        keys[-1:],
        values[-1:],
        torch.tensor([length - 1]),
        torch.empty(0),
        torch.arange(length).int()[None],
        torch.tensor([0]),
        torch.tensor([length]),
        HEAD_DIM**-0.5,
        0.0,
        False,
        window,
    )
    torch.testing.assert_close(out, extend(queries, keys, values, 1, window))


@pytest.mark.parametrize("window", [0, 2, 3])
def test_each_branch_of_a_tree_sees_what_it_would_see_as_a_sequence(window: int) -> None:
    prefix, parents = 6, [0, 0, 0, 1, 2, 3]  # node 0 is the root; 4 hangs on 2, 5 on 3, 3 on 1
    queries, keys, values = sequence(prefix + len(parents))
    paths = []
    for node in range(len(parents)):
        path = [node]
        while path[0] != 0:
            path.insert(0, parents[path[0]])
        paths.append(path)
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node, path in enumerate(paths):
        mask[node, path] = True
    got = extend(queries, keys, values, len(parents), window, mask.flatten())
    for node, path in enumerate(paths):
        alone = torch.tensor([*range(prefix), *(prefix + step for step in path)])
        wanted = extend(queries[alone], keys[alone], values[alone], 1, window)
        torch.testing.assert_close(got[node : node + 1], wanted)


def build_tree(
    parent_list: list[int], selected: list[int], topk: int, length: int
) -> dict[str, torch.Tensor]:
    """Call the stand-in for one tree."""
    from sgl_kernel import build_tree_kernel_efficient_cpu

    nodes = len(selected) + 1
    tree = {
        "mask": torch.ones(nodes * nodes, dtype=torch.bool),
        "positions": torch.zeros(nodes, dtype=torch.long),
        "index": torch.full((1, nodes), -1),
        "child": torch.full((1, nodes), -1),
        "sibling": torch.full((1, nodes), -1),
    }
    build_tree_kernel_efficient_cpu(
        torch.tensor([parent_list]),
        torch.tensor([selected]),
        torch.tensor([length]),
        *tree.values(),
        topk,
        0,
        nodes,
        1,
    )
    return tree


def test_a_tree_is_linked_masked_and_walked() -> None:
    from sgl_kernel import verify_tree_greedy_cpu

    # topk 2, two steps: candidates 0 1 below the root, 2 3 below 0, 4 5 below 1. Kept: 0, 1, 3, 4.
    tree = build_tree([-1, 0, 1], [0, 1, 3, 4], topk=2, length=10)
    assert tree["positions"].tolist() == [10, 11, 11, 12, 12]
    assert tree["mask"].view(5, 5).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]
    predicts = torch.zeros(5, dtype=torch.int32)
    accepted = torch.full((1, 3), -1, dtype=torch.int32)
    count = torch.zeros(1, dtype=torch.int32)
    verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=count,
        candidates=torch.tensor([[70, 71, 72, 73, 74]]),
        retrive_index=tree["index"],
        retrive_next_token=tree["child"],
        retrive_next_sibling=tree["sibling"],
        target_predict=torch.tensor([[72, 73, 74, 99, 98]]),  # after 70: 72, after 72: 74, then 98
    )
    assert accepted.tolist() == [[0, 2, 4]]
    assert count.tolist() == [2]
    assert [predicts[node].item() for node in (0, 2, 4)] == [72, 74, 98]


def test_a_node_whose_parent_was_not_kept_is_left_out_of_the_walk() -> None:
    tree = build_tree([-1, 0, 1], [0, 4], topk=2, length=3)
    assert tree["child"].tolist() == [[1, -1, -1]]
    assert tree["sibling"].tolist() == [[-1, -1, -1]]
