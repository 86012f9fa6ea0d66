"""Which buffer slot holds which token: between the request pool and the key/value buffers."""

# ruff: noqa: ARG001 - the signatures are SGLang's

import ctypes

import torch


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy slots within every layer's key and value buffer, as the accepted branch of a tree needs.

    Args:
        data_ptrs: Address of each buffer.
        strides: Bytes of one slot in each buffer.
        tgt_loc: Slots to write.
        src_loc: Slots to read, all of them before the first is written.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + slot * size, size) for slot in sources]
        for slot, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + slot * size, row, size)


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write new slots into the positions ``start .. end`` of each request."""
    taken = 0
    for request, start, end in _spans(req_pool_indices, start_offset, end_offset):
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[request, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the slots of the positions ``start .. end`` of each request, in turn."""
    taken = 0
    for request, start, end in _spans(req_pool_indices, start_offset, end_offset):
        slots = req_to_token[request, start:end]
        out_cache_loc[taken : taken + end - start] = slots.to(out_cache_loc.dtype)
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the ``topk * num_steps`` slots after each request's end, branch by branch."""
    count = topk * num_steps
    per_request = out_cache_loc.view(-1, count)
    for row, (request, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        per_request[row] = req_to_token[request, length : length + count].to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """Return a slot table with one row a branch: the request's prefix, then the branch's own slots.

    The slots stay with the branch's rank. SGLang copies nothing when a branch's best child comes
    from another branch.
    """
    table = torch.zeros(seq_lens.numel() * topk, pool_len, dtype=req_to_token.dtype)
    branches = table.view(-1, topk, pool_len)
    for row, (request, length) in enumerate(
        zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    ):
        branches[row, :, :length] = req_to_token[request, :length]
        own = req_to_token[request, length : length + topk * num_steps]
        branches[row, :, length : length + num_steps] = own.view(topk, num_steps)
    return table


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Gather the slots of the accepted tokens; -1 marks a place where nothing was accepted."""
    flat = accept_index.flatten()
    accepted = flat[flat >= 0].long()
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted]


def _spans(requests: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> zip:
    """Pair each request with its span of positions."""
    return zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True)
