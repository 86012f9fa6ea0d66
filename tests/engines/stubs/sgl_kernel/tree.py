"""Draft trees: built for one parallel verification, walked by the target's choices.

A tree has ``draft_token_num`` nodes, node 0 the root (the last verified token). ``selected_index[b,
i - 1]`` is node i's number among all candidates: the first ``topk`` are the root's children, each
later step adds ``topk * topk``. ``parent_list[b, selected // topk]`` is the candidate number of the
parent, for candidates of the second step on.
"""

# ruff: noqa: ARG001 - the signatures are SGLang's

import torch

ORPHAN = -1


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill positions, ancestor mask and the first-child / next-sibling links of each tree.

    The mask is written as ``[trees, nodes, nodes]`` (mode 1, all that SGLang asks for on a CPU).
    """
    if int(tree_mask_mode) != 1:
        raise NotImplementedError(f"tree mask mode {tree_mask_mode}: only QLEN_ONLY (1)")
    nodes = draft_token_num
    masks = tree_mask.view(-1, nodes, nodes)
    place = positions.view(-1, nodes)
    for tree, length in enumerate(verified_seq_len.tolist()):
        parents = _parents(parent_list[tree].tolist(), selected_index[tree].tolist(), topk)
        retrieve_index[tree] = torch.arange(tree * nodes, (tree + 1) * nodes)
        for node in reversed(range(1, nodes)):  # so that siblings end up in ascending order
            parent = parents[node]
            if parent == ORPHAN:
                continue
            first_child = int(retrieve_next_token[tree, parent])
            if first_child != -1:
                retrieve_next_sibling[tree, node] = first_child
            retrieve_next_token[tree, parent] = node
        for node in range(nodes):
            path = _path_to_root(node, parents)
            masks[tree, node] = False
            masks[tree, node, path] = True
            place[tree, node] = length + len(path) - 1


def verify_tree_greedy_cpu(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree from its root along the target's greedy choices, as far as nodes carry them.

    Writes the accepted nodes' flat indices, their number without the root, and the target's choice
    after each of them.
    """
    choices = target_predict.flatten().tolist()
    for tree in range(candidates.shape[0]):
        tokens, flat = candidates[tree].tolist(), retrive_index[tree].tolist()
        first_child, sibling = (
            retrive_next_token[tree].tolist(),
            retrive_next_sibling[tree].tolist(),
        )
        walk = [0]
        while len(walk) < accept_index.shape[1]:
            wanted, child = choices[flat[walk[-1]]], first_child[walk[-1]]
            while child != -1 and tokens[child] != wanted:
                child = sibling[child]
            if child == -1:
                break
            walk.append(child)
        for step, node in enumerate(walk):
            accept_index[tree, step] = flat[node]
            predicts[flat[node]] = choices[flat[node]]
        accept_token_num[tree] = len(walk) - 1


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """Take each request's last accepted token (``accept_lens`` counts it)."""
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens.long() - 1
    bonus_tokens[: accept_lens.numel()] = accept_tokens.flatten()[last].to(bonus_tokens.dtype)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's tokens one to the left and put its newest token at the end."""
    newest = topk_index.flatten()
    spans = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    for request, (start, length) in enumerate(spans):
        if not length:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        last = start + length - 1 if select_index is None else int(select_index[request])
        input_ids[last] = newest[request]


def _parents(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """Return each node's parent node, 0 for the root's.

    A child's score is its parent's times a probability, so its parent is kept too, unless that
    probability is exactly 1 and the tie went the other way: such a node is an orphan, which
    SGLang's kernels leave out of the walk.
    """
    node_of = {candidate: node for node, candidate in enumerate(selected, start=1)}
    groups = (candidate // topk for candidate in selected)
    return [0] + [0 if group == 0 else node_of.get(parent_list[group], ORPHAN) for group in groups]


def _path_to_root(node: int, parents: list[int]) -> list[int]:
    """Return a node and its ancestors, the root last."""
    path = [node]
    while path[-1] != 0:
        path.append(max(parents[path[-1]], 0))
    return path
